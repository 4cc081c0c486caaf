"""Weights, optimizer state and the step survive any change of processes, ZeRO stage and precision exactly."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pretrain.checkpoint import Checkpoint
from pretrain.config import Config
from pretrain.engine import Engine, layout_of
from pretrain.engine.resharding import Layout
from pretrain.optim.optimizers import Muon
from tests.support.checkpoints import write_parts
from tests.support.engine_steps import RUNS, config, global_batches, model, rank_batches, record, run_as_rank, take_step
from tests.support.ranks import run_ranks


def settings(precision: str, zero: str) -> Config:
    """Muon and averages: every kind of state that an optimizer has."""
    return config(precision, zero, optim={"name": "muon", "eps": 1e-3, "grad_clip": 0.5, "ema": 0.7})


def step_all_alike(engine: Engine) -> dict[str, np.ndarray]:
    """Take a step with the same batch on every rank, so that it is the same for any number of ranks."""
    take_step(engine, global_batches(0, 1)[0])
    return {f"{name} after": value for name, value in record(engine).items()}


def save(folder: str) -> None:
    """Train under each layout, save, record, and record the state after one step more."""
    for precision, zero in RUNS:
        engine = Engine(settings(precision, zero), model())
        for number in range(2):
            take_step(engine, rank_batches(number))
        path = Path(folder) / f"{dist.get_world_size()}-{precision}-{zero}"
        write_parts(path, engine.snapshot(path, copy=False))
        dist.barrier()
        recorded = record(engine) | step_all_alike(engine)
        if dist.get_rank() == 0:
            np.savez(path / "record.npz", **recorded)
        engine.release()


def load(folder: str, processes: str, targets: str) -> None:
    """Load the checkpoints that `processes` ranks have left, each under the `next` layout or under `all` of them."""
    Muon.orthogonalization_dtype = torch.float32  # type: ignore[assignment,method-assign]
    for number, (precision, zero) in enumerate(RUNS):
        path = Path(folder) / f"{processes}-{precision}-{zero}"
        before = layout_of(settings(precision, zero)) | {"processes": int(processes)}
        for target in RUNS if targets == "all" else [RUNS[(number + 1) % len(RUNS)]]:
            _load(path, before, *target)


def _load(path: Path, before: Layout, precision: str, zero: str) -> None:
    wanted = np.load(path / "record.npz")
    engine = Engine(settings(precision, zero), model())
    engine.load(Checkpoint(path, 2, {"layout": before}, {}))
    loaded = record(engine)
    for name, value in loaded.items():
        assert np.array_equal(value, wanted[name]), f"{path.name} -> {precision} {zero}: {name} differs"
    after = step_all_alike(engine)
    assert set(loaded) | set(after) == set(wanted.files)
    tolerance = 1e-5 if precision == before["train.precision"] == "fp32" else 0.05
    for name, value in after.items():
        difference = np.abs(value - wanted[name]).max()
        assert difference <= tolerance * np.abs(wanted[name]).max(), f"{path.name} -> {precision} {zero}: {name}"
    engine.release()


@pytest.mark.slow
def test_every_layout_takes_up_another(tmp_path):
    """Three ranks share nothing evenly."""
    run_ranks(__name__, 1, "save", str(tmp_path))
    run_ranks(__name__, 3, "load", str(tmp_path), "1", "next")
    run_ranks(__name__, 3, "save", str(tmp_path))
    run_ranks(__name__, 2, "load", str(tmp_path), "3", "next")


@pytest.mark.slow
def test_every_layout_takes_up_every_other(tmp_path):
    run_ranks(__name__, 1, "save", str(tmp_path))
    run_ranks(__name__, 2, "load", str(tmp_path), "1", "all")


if __name__ == "__main__":
    run_as_rank(save, load)
