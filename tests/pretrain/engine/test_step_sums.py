"""Sums of a step: named fields are the same on all ranks, and after packing."""

from dataclasses import fields, replace

import torch

from pretrain.engine import LossSums, StepOutput, StepSums

OBJECTIVES = 2
SUMS = StepSums(
    20.0,
    1.0,
    2.0**52 + 1,
    7e9,
    stop=1.0,
    written=2.0,
    save_due=0.0,
    predictions=(5.0, 9.0),
    weights=(2.5, 9.0),
    compute_seconds=(0.5, 0.25),
)


def test_sums_of_ranks_are_sums_of_each_number():
    total = torch.tensor([SUMS.pack(), SUMS.pack()], dtype=torch.float64).sum(0)
    doubled = {field.name: 2 * getattr(SUMS, field.name) for field in fields(SUMS)[:-3]}
    doubled |= {"predictions": (10.0, 18.0), "weights": (5.0, 18.0), "compute_seconds": (1.0, 0.5)}
    assert StepSums.unpack(total.tolist(), OBJECTIVES) == replace(SUMS, **doubled)
    assert StepSums.packed_weights(total, OBJECTIVES).tolist() == [5.0, 18.0]


def test_the_values_of_a_step_are_unpacked():
    losses = LossSums(2.5, 3.0, 5.0, 2.5), LossSums(1.5, 4.0, 9.0, 9.0)
    values = [2.5, 1.5, 3.0, 4.0, 0.75, 0.0, *SUMS.pack()]
    assert StepOutput.unpack(values, OBJECTIVES) == StepOutput(losses, 0.75, 0.0, SUMS)
