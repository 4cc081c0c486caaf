"""A run of three phases that change data, objectives, masks, rows, batches and the schedule."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.datasets import make_dataset

STEPS = 24
TOLERANCE = 1e-4  # of the loss in fp32, over 24 steps
BOUNDARIES = (8, 17)  # the last steps of the first two phases


def phase_data(folder: Path) -> Path:
    """The data sets of tests.support.runs.tiny_data, and folder/other."""
    runs.tiny_data(folder)
    make_dataset(folder / "other", [range(5, 60)] * 100, runs.VOCAB_SIZE)
    return folder


def phases(data: Path) -> list[dict[str, Any]]:
    both = [{"path": str(data / "train"), "weight": 1}, {"path": str(data / "other"), "weight": 3}]
    return [
        {"name": "stable", "steps": 8, "masking": {"rate": {"schedule": "linear", "start": 0.3, "end": 0.2}}},
        {
            "name": "context",
            "steps": 9,
            "data": {"train": both, "seq_len": 64},
            "objective": [{"kind": "mlm", "share": 0.75}, {"kind": "clm", "share": 0.25}],
            "model": {"global_rope_theta": 1e6},
            "train": {"global_batch_size": 8},
        },
        {
            "name": "decay",
            "steps": 7,
            "data": {"train": str(data / "train"), "seq_len": 16, "restart": True},
            "objective": "mlm",
            "masking": {"replacement": {"mask": 1.0, "random": 0.0}, "rate": 0.15},
            "schedule": {"kind": "linear"},
            "optim": {"lr": 1e-3},
            "train": {"global_batch_size": 24, "micro_batch_size": 6},
        },
    ]


def phase_settings(data: Path) -> dict[str, Any]:
    """Settings of tests.support.runs.tiny_config."""
    return {
        "phases": phases(data),
        "model": {"arch": "modernbert", "size": {"layers": 2, "hidden": 32, "heads": 2}, "local_attention": 8},
        "schedule": {"kind": "constant", "warmup_steps": 3},
        "train": {"global_batch_size": 8, "precision": "fp32"},
        "checkpoint": {"every_steps": 4, "keep": 9},
        "track__models": "none",
    }


def assert_same_training(run: Path, whole: Path) -> None:
    """The same global batches, bit for bit, and losses within the tolerance, as sums may have another order."""
    wanted, losses = runs.losses(whole), runs.losses(run)
    assert sorted(wanted) == list(range(1, STEPS + 1))
    assert losses == pytest.approx(wanted, rel=TOLERANCE)
    assert runs.batches(run) == runs.batches(whole)
