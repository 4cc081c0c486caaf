"""Deferred reads: everything is returned once, in order, `lag` pushes later."""

import pytest
import torch

from pretrain.distributed import DeferredReader


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_values_come_in_order_after_the_lag(lag):
    reader: DeferredReader[int] = DeferredReader(lag)
    read = []
    for step in range(10):
        due = reader.push(step, torch.tensor([step, step / 2], dtype=torch.float64))
        assert [label for label, _ in due] == ([step - lag] if step >= lag else [])
        read += due
    read += reader.drain()
    assert read == [(step, [float(step), step / 2]) for step in range(10)]
    assert reader.drain() == []


def test_full_precision_is_kept():
    reader: DeferredReader[str] = DeferredReader(0)
    value = 0.1 + 2**-55
    assert reader.push("x", torch.tensor([value], dtype=torch.float64)) == [("x", [value])]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_values_are_copied_when_pushed():
    reader: DeferredReader[int] = DeferredReader(2)
    values = torch.zeros(3, device="cuda")
    for step in range(5):
        values.fill_(step)
        reader.push(step, values)
    assert reader.drain() == [(3, [3.0] * 3), (4, [4.0] * 3)]
