"""The warning about slow precisions."""

import pytest
import torch

from pretrain.engine import slow_precision


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_who_trains_in_16_bits_without_instructions_for_them_is_warned(precision, monkeypatch):
    supported = f"_is_mkldnn_{precision}_supported"
    monkeypatch.setattr(torch.ops.mkldnn, supported, lambda: False)
    assert f"no instructions for {precision}" in slow_precision(precision, "cpu")
    assert slow_precision(precision, "cuda") is None
    assert slow_precision("fp32", "cpu") is None
    monkeypatch.setattr(torch.ops.mkldnn, supported, lambda: True)
    assert slow_precision(precision, "cpu") is None
