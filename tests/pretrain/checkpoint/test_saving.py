"""Asynchronous checkpoints equal synchronous ones byte for byte, regardless of later training steps."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
import torch.distributed as dist

from pretrain import checkpoint
from pretrain.checkpoint import Parts
from pretrain.engine import Engine
from pretrain.engine.resharding import load_file
from tests.support import checkpoints
from tests.support.engine_steps import RUNS, config, model, rank_batches, take_step
from tests.support.ranks import check_on_ranks


def steps(engine: Engine, count: int) -> None:
    for number in range(count):
        take_step(engine, rank_batches(number))


def save_both_ways(folder: Path, precision: str, zero: str) -> None:
    """A checkpoint of one step, saved synchronously, then by a writer that waits until three more steps are done."""
    engine = Engine(config(precision, zero), model())
    steps(engine, 2)
    checkpoints.commit(folder / "before", 2, {}, engine.snapshot)
    trained = threading.Event()

    def after_training(write: Callable[[IO[bytes]], None]) -> Callable[[IO[bytes]], None]:
        def wait_and_write(file: IO[bytes]) -> None:
            assert trained.wait(60)
            write(file)

        return wait_and_write

    def snapshot(path: Path, copy: bool) -> Parts:
        return {name: after_training(write) for name, write in engine.snapshot(path, copy).items()}

    used = checkpoints.saver(folder / "meanwhile", snapshot)
    for again in (2, 3):  # the second time into the memory of the first
        trained.clear()
        used.begin(again, {})
        steps(engine, 3 if again == 2 else 1)
        trained.set()
        used.finish()
        assert used.saved_step == again
    used.close()
    steps(engine, 1)
    checkpoints.commit(folder / "after", 2, {}, engine.snapshot)
    engine.release()


def save_all(folder: str) -> None:
    for precision, zero in RUNS:
        path = Path(folder) / f"{precision}-{zero}"
        if dist.get_rank() == 0:
            for name in ("before", "meanwhile", "after"):
                (path / name).mkdir(parents=True)
        dist.barrier()
        save_both_ways(path, precision, zero)


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def saved(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    check_on_ranks(save_all, request.param, folder)
    return folder


@pytest.mark.parametrize("layout", ["-".join(run) for run in RUNS])
def test_an_asynchronous_checkpoint_is_that_of_its_step(saved, layout):
    paths = (saved / layout / name / "step-00000002" for name in ("before", "meanwhile", "after"))
    before, meanwhile, after = map(checkpoint.read, paths)
    assert before.files
    assert meanwhile.files == before.files, "the same bytes"
    assert after.files != before.files, "the steps meanwhile changed the state"
    assert checkpoint.verify(meanwhile.path) is None
    for name in meanwhile.files:
        assert load_file(meanwhile.path / name), "the restricted unpickler reads it"
