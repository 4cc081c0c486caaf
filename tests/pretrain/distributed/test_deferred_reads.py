"""Deferred reads: everything is returned once, in order, `lag` pushes later, in full precision."""

import pytest
import torch

from pretrain.distributed import DeferredReader


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_values_come_in_order_after_the_lag(lag):
    reader: DeferredReader[int] = DeferredReader(lag)
    read = []
    for step in range(10):
        due = reader.push(step, torch.tensor([step, 0.1 + 2**-55], dtype=torch.float64))
        assert [label for label, _ in due] == ([step - lag] if step >= lag else [])
        read += due
    read += reader.drain()
    assert read == [(step, [float(step), 0.1 + 2**-55]) for step in range(10)]
    assert reader.drain() == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_values_are_copied_when_pushed():
    reader: DeferredReader[int] = DeferredReader(2)
    values = torch.zeros(3, device="cuda")
    for step in range(5):
        values.fill_(step)
        reader.push(step, values)
    assert reader.drain() == [(3, [3.0] * 3), (4, [4.0] * 3)]
