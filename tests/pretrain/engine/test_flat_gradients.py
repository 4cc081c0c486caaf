"""The sum of squares of ZeRO 1's gradients; whether the gradients are right: test_varying_batches.py."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.engine.flat_gradients import FlatGradients


def squares(*parts: Tensor) -> Tensor:
    gradients: Any = SimpleNamespace(parts=list(parts))
    return FlatGradients.squares(gradients)


def test_sums_of_squares_ask_the_device_for_nothing():
    """Tensors on "meta" have no values to be asked for."""
    total = squares(torch.empty(7, device="meta", dtype=torch.bfloat16), torch.empty(3, device="meta"))
    assert (total.device.type, total.dtype, total.shape) == ("meta", torch.float64, ())


def test_sums_over_millions_of_elements_keep_their_digits():
    numbers = torch.rand(5_000_011, generator=torch.Generator().manual_seed(0))
    assert squares(numbers).item() == pytest.approx(numbers.double().square().sum().item(), rel=1e-5)
