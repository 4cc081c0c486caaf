"""The item of benchmarks/gpu_table.py that repeats computations finds noise. CI runs all items on a CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.gpu_repeats import Run, compare_repetitions, compared

EQUAL = {"differ": 0, "by": 0.0}


RUN = Run([5.0, 4.0], {"a": np.ones(4, np.float32), "b": np.full(2, 3.0, np.float32)}, 1000.0)


def test_noise_in_a_run_is_found():
    assert compared(RUN, RUN)["equal"]
    other_loss = compared(RUN, replace(RUN, losses=[5.0, 4.0 + 1e-15 * 4]))
    assert not other_loss["equal"]
    assert 0 < other_loss["losses"] < 1e-14
    last = np.nextafter(RUN.weights["b"], 9, dtype=np.float32)
    other_weights = compared(RUN, replace(RUN, weights=RUN.weights | {"b": last}, rate=2000.0))
    assert not other_weights["equal"]
    assert (other_weights["losses"], other_weights["tokens per second"]) == (0.0, 1500.0)
    assert other_weights["weights"] == pytest.approx(2**-22 / 3, rel=1e-3)
    assert compared(RUN, replace(RUN, losses=[5.0, float("nan")]))["losses"] == float("inf")


def test_noise_in_a_repetition_is_found():
    calls = iter(range(9))

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(3), torch.tensor([4.0, 2.0 + (next(calls) % 3 == 2)])

    found = compare_repetitions(compute, ("steady", "noisy"), 9)
    assert found == {"repetitions": 8, "steady": EQUAL, "noisy": {"differ": 3, "by": 0.25}}
