"""Weights, optimizer state and the step survive any change of processes, ZeRO stage and precision exactly."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from data_prep.common.errors import UserError
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config
from pretrain.engine import Engine, layout_of
from pretrain.engine.resharding import Layout, gather
from pretrain.optim import Piece
from pretrain.optim.optimizers import Muon
from tests.support.checkpoints import write_parts
from tests.support.engine_steps import RUNS, config, global_batches, model, rank_batches, record, take_step
from tests.support.ranks import check_on_ranks

SIZES = {"a": (4, 3), "b": (5,), "c": (1,)}
LAYOUT = {"zero.stage": 0, "processes": 1}


def whole(offset: float) -> dict[str, torch.Tensor]:
    sizes = {name: torch.Size(shape).numel() for name, shape in SIZES.items()}
    return {name: offset + 100 * i + torch.arange(sizes[name]).float() for i, name in enumerate(SIZES)}


@pytest.fixture
def folder(tmp_path):
    """The files of one rank under ZeRO 0."""
    weights, first, second = whole(0), whole(1000), whole(2000)
    state = {
        i: {"step": torch.tensor(7.0), "exp_avg": first[n].view(SIZES[n]), "exp_avg_sq": second[n].view(SIZES[n])}
        for i, n in enumerate(SIZES)
    }
    module = {name: values.view(SIZES[name]) for name, values in weights.items()}
    torch.save({"module": module, "optimizer": {"state": state}}, tmp_path / "mp_rank_00_model_states.pt")
    return tmp_path


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 30])
def test_cut_into_any_number_of_parts(folder, ranks):
    """All parameters back to back, padded, and cut evenly, as ZeRO 1 does; with 30 ranks some hold padding alone."""
    places = [(name, index) for name, values in whole(0).items() for index in range(len(values))]
    share = -(-len(places) // ranks)
    wanted = []
    for rank in range(ranks):
        held = places[rank * share : (rank + 1) * share]
        wanted.append((share, [Piece(name, index, 1, offset) for offset, (name, index) in enumerate(held)]))
    flats = gather(folder, LAYOUT, list(SIZES), wanted)
    for offset, tensors in (
        (0, [flat.weights for flat in flats]),
        (1000, [flat.state["exp_avg"] for flat in flats]),
        (2000, [flat.state["exp_avg_sq"] for flat in flats]),
    ):
        assert torch.equal(torch.cat(tensors)[: len(places)], torch.cat([*whole(offset).values()]))
        assert not torch.cat(tensors)[len(places) :].any()
    assert all(flat.state["step"] == 7 for flat in flats)


@pytest.mark.parametrize("wanted", [Piece("a", 10, 3, 0), Piece("d", 0, 1, 0)])
def test_what_is_not_there_is_named(folder, wanted):
    with pytest.raises(UserError, match=f"cannot be split for another.*of parameter {wanted.name} are nowhere"):
        gather(folder, LAYOUT, list(SIZES), [(3, [wanted])])


@pytest.mark.parametrize("stage", [1, 3])
def test_files_of_another_layout_are_refused(folder, stage):
    with pytest.raises(UserError, match=f"its files are not the files of 1 processes with ZeRO {stage}"):
        gather(folder, {"zero.stage": stage, "processes": 1}, list(SIZES), [])


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


def load(folder: str, processes: str) -> None:
    """Load the checkpoints that `processes` ranks have left, each under the next layout."""
    Muon.orthogonalization_dtype = torch.float32  # type: ignore[assignment,method-assign]
    for number, (precision, zero) in enumerate(RUNS):
        path = Path(folder) / f"{processes}-{precision}-{zero}"
        before = layout_of(settings(precision, zero)) | {"processes": int(processes)}
        check(path, before, *RUNS[(number + 1) % len(RUNS)])


def check(path: Path, before: Layout, precision: str, zero: str) -> None:
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
    check_on_ranks(save, 1, tmp_path)
    check_on_ranks(load, 3, tmp_path, "1")
    check_on_ranks(save, 3, tmp_path)
    check_on_ranks(load, 2, tmp_path, "3")
