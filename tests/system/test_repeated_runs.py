"""The phases of benchmarks/gpu_table.py that repeat computations: equal bit by bit on a CPU, and noise is found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu_phases import Request, phases
from benchmarks.gpu_repeats import Run, compare_repetitions, compared
from benchmarks.gpu_table import page
from tests.support.datasets import make_dataset

EQUAL = {"differ": 0, "by": 0.0}


@pytest.fixture(autouse=True)
def _settings_are_restored(monkeypatch):
    """The phases change the settings of their process."""
    for name, value in (("CUBLAS_WORKSPACE_CONFIG", ":4096:8"), ("NCCL_NVLS_ENABLE", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)


def measured(name: str, data: Path) -> Any:
    request = Request(data, "cpu", torch.get_num_threads(), quick=True)
    (phase,) = (phase for phase in phases(request) if phase.name == name)
    return dict(phase.measure(request))


def shown(name: str, result: Any) -> str:
    return page({name: {"result": result}}, Request(Path(), "cpu", 1, quick=True))


@pytest.mark.slow
def test_two_runs_are_equal_on_a_cpu(tmp_path):
    rng = np.random.default_rng(0)
    make_dataset(tmp_path / "data", [rng.integers(5, 1000, size=100) for _ in range(300)])
    found = measured("repeated runs mini-128", tmp_path / "data")
    assert found["plain"].keys() == {"off", "on"}
    for one in found["plain"].values():
        rate = one.pop("tokens per second")
        assert rate > 0
        assert one == {"steps": 3, "equal": True, "losses": 0.0, "weights": 0.0}


def test_attention_is_equal_on_a_cpu(tmp_path):
    found = measured("repeated attention", tmp_path)
    assert len(found) == 2
    for backends in found.values():
        assert backends.keys() == {"sdpa"}
        for one in backends["sdpa"].values():
            assert one == {"repetitions": 2} | dict.fromkeys(("output", "dQ", "dK", "dV"), EQUAL)
    assert "differ from the first" in shown("repeated attention", found)
    assert not torch.are_deterministic_algorithms_enabled()


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


def test_the_page_says_what_differs():
    off, on = compared(RUN, replace(RUN, losses=[5.0, 4.4])), compared(RUN, replace(RUN, rate=500.0))
    text = shown(
        "repeated runs mini-128", {"plain": {"off": off, "on": on}, "fused": {"off": off, "on": {"failed": "x"}}}
    )
    assert "| plain | off | differ, 2 steps | 0.1 | 0 | 1,000 |  |" in text
    assert "| plain | on | equal bit by bit, 2 steps | 0 | 0 | 750 | 25.0% |" in text
    assert "| fused | on | failed: x |" in text
    one = {"repetitions": 9, "output": EQUAL, "dQ": {"differ": 4, "by": 1e-3}, "dK": EQUAL, "dV": EQUAL}
    text = shown("repeated attention", {"rows": {"FlashAttention 2": {"off": one, "on": {"failed": "y"}}}})
    assert "| rows | FlashAttention 2 | off | 0 of 9 | 4 of 9, 0.001 | 0 of 9 | 0 of 9 |" in text
    assert "| rows | FlashAttention 2 | on | failed: y |" in text
