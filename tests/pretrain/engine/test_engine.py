"""Clipping with the bits of DeepSpeed's, and the warning about slow precisions."""

from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from pretrain.engine import slow_precision
from pretrain.engine.clipping import Clipping


@pytest.mark.parametrize(
    ("norm", "scale", "largest"), [(3.0, 1.0, 0.5), (0.2, 1.0, 0.5), (9.0, 8.0, 1.0), (9.0, 4.0, 0.0)]
)
def test_clipping_has_the_bits_of_deepspeeds(norm, scale, largest):
    optimizer = SimpleNamespace(loss_scale=scale, clip_grad=largest, device=torch.device("cpu"))
    ours, theirs = (torch.linspace(-2, 3, 1001) for _ in range(2))
    Clipping(optimizer, fp16=True)
    optimizer.unscale_and_clip_grads([ours], torch.tensor(norm))
    DeepSpeedZeroOptimizer.unscale_and_clip_grads(optimizer, [theirs], torch.tensor(norm))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_who_trains_in_16_bits_without_instructions_for_them_is_warned(precision, monkeypatch):
    supported = f"_is_mkldnn_{precision}_supported"
    monkeypatch.setattr(torch.ops.mkldnn, supported, lambda: False)
    assert f"no instructions for {precision}" in slow_precision(precision, "cpu")
    assert slow_precision(precision, "cuda") is None
    assert slow_precision("fp32", "cpu") is None
    monkeypatch.setattr(torch.ops.mkldnn, supported, lambda: True)
    assert slow_precision(precision, "cpu") is None
