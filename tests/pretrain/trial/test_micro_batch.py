"""The micro-batch that a run chooses: the largest that the plan fits, on GPUs, and a smaller one without memory."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from pretrain.config import Config
from pretrain.data import BatchStage
from pretrain.planning import GpuMemory, Planner, micro_batch_sizes, with_micro_batch
from tests.support.configs import least_config

GB = 10**9


def config(micro: int | str | None = None, **sections: Any) -> Config:
    train = {"steps": 100, "global_batch_size": 96, "micro_batch_size": micro}
    return least_config(**{"data": {"seq_len": 512}, "model": {"size": "base"}, "train": train} | sections)


def test_auto_is_the_same_as_no_value():
    assert config("auto") == config(None)
    assert config("auto").train.micro_batch_size is None


@pytest.mark.parametrize("gigabytes", [8, 16, 24, 80])
def test_the_plan_takes_the_largest_size_that_fits(gigabytes):
    planner, gpu = Planner(config(), None, 30522), GpuMemory("a GPU", gigabytes * GB)
    planned = planner.plan(2, gpu)
    rows = planned.stages[0].micro_batch_size
    assert planned.automatic
    assert planned.fits
    assert rows == planner.largest_micro_batch(2, gpu) == planned.choices[0].micro_batch_size
    assert 48 % rows == 0
    larger = [size for size in micro_batch_sizes(config(), 2) if size > rows]
    assert not any(Planner(config(size), None, 30522).plan(2, gpu).fits for size in larger)


def test_without_a_gpu_or_with_a_size_nothing_is_chosen():
    assert Planner(config(), None, 30522).plan(2).stages[0].micro_batch_size == 48
    planned = Planner(config(24), None, 30522).plan(2, GpuMemory("a GPU", 80 * GB))
    assert (planned.automatic, planned.stages[0].micro_batch_size) == (False, 24)


def test_if_nothing_fits_the_smallest_size_is_tried():
    assert Planner(config(), None, 30522).largest_micro_batch(2, GpuMemory("", 1)) == 1


def test_the_size_fits_every_stage():
    later = {"name": "b", "steps": 50, "data": {"seq_len": 1024}, "train": {"global_batch_size": 40}}
    stages = [{"name": "a", "steps": 50}, later]
    rows = Planner(config(phases=stages), None, 30522).largest_micro_batch(2, GpuMemory("", 72 * GB))
    phases = BatchStage.of_run(with_micro_batch(config(phases=stages), rows), 2)
    assert [phase.micro for phase in phases] == [rows, rows]
    assert 48 % rows == 20 % rows == 0
    assert [phase.rows for phase in phases] == [96, 40], "the position in the stream depends on these alone"


@pytest.mark.parametrize("size", [None, 4])
def test_a_phase_with_its_own_size_does_not_decide_for_those_before(size):
    later = {"name": "b", "steps": 25, "train": {"global_batch_size": 40}}
    own = {"name": "c", "steps": 25, "train": {"global_batch_size": 96, "micro_batch_size": 2}}
    given = config(size, phases=[{"name": "a", "steps": 50}, later, own])
    assert micro_batch_sizes(given, 2) == [4, 2, 1]
    assert [stage.micro for stage in BatchStage.of_run(with_micro_batch(given, 4), 2)] == [4, 4, 2]


def test_another_size_replaces_the_one_of_the_first_phase():
    first = {"name": "a", "steps": 50, "train": {"micro_batch_size": 48}}
    given = config(phases=[first, {"name": "b", "steps": 50}])
    assert [stage.micro for stage in BatchStage.of_run(with_micro_batch(given, 12), 2)] == [12, 12]


@dataclass(frozen=True)
class Run:
    """The parts of a run that decide its micro-batch."""

    given: Config
    config: Config
    stages: tuple[BatchStage, ...]
    hosts: tuple[str, ...] = ("here",)


@pytest.mark.parametrize(
    ("given", "stage", "most", "rows"),
    [(None, 1, 96, 48), (None, 1, 20, 16), (None, 1, 0, 1), (48, 1, 20, 48), (None, 3, 20, 48)],
)
def test_a_size_without_memory_is_lowered_to_the_next(monkeypatch, given, stage, most, rows):
    from pretrain.trial import micro_batch

    start = config(given, zero={"stage": stage})
    filled = with_micro_batch(start, 48)
    run: Any = Run(start, filled, BatchStage.of_run(filled, 1))
    closed: list[int] = []

    def opened(run: Any) -> Any:
        rows = run.stages[0].micro
        return SimpleNamespace(size=rows, close=lambda: closed.append(rows))

    def memory_of(config: Config, engine: Any, loader: Any, state: Any) -> Any:
        """Stands for passes on a GPU with memory for `most` rows."""
        return SimpleNamespace(fits=lambda: loader.size <= most)

    monkeypatch.setattr(micro_batch, "Trial", memory_of)
    monkeypatch.setattr(micro_batch, "open_loader", opened)
    monkeypatch.setattr(micro_batch, "print_on_rank_zero", lambda line: None)
    engine: Any = SimpleNamespace(module=SimpleNamespace())
    found, loader = micro_batch.fit_micro_batch(replace(run), engine, opened(run), None)  # type: ignore[arg-type]
    assert (found.stages[0].micro, loader.size) == (rows, rows)
    assert len(closed) == {48: 0, 16: 3, 1: 10}[rows]
