"""Clipping with the bits of DeepSpeed's."""

from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

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
