"""The benchmarks and experiments load: few tests run them."""

import importlib
import multiprocessing

import pytest

from benchmarks.harness import write_page
from benchmarks.speedrun_curves import Curve, Point, best, next_rung, row
from benchmarks.speedrun_recipes import BASE, IDEAS, OURS, SEQ_LEN, SMALL, nested, values_of
from pretrain.config import Config
from tests.support.forked import ROOT


def load(names: list[str]) -> None:
    for name in names:
        importlib.import_module(name)


def test_benchmarks_and_experiments_load():
    """In a fork of this process, which has imported most of what they need."""
    paths = [path for folder in ("benchmarks", "experiments") for path in (ROOT / folder).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(paths)]
    assert {"benchmarks.loader", "experiments.word_order"} < {*names}
    loading = multiprocessing.get_context("fork").Process(target=load, args=(names,))
    loading.start()
    loading.join(120)
    assert loading.exitcode == 0


def test_a_page_is_written_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    write_page(tmp_path / "page.md", "# A page", ("torch",))
    assert "| commit | unknown |" in (tmp_path / "page.md").read_text()


def curve(*losses: float) -> Curve:
    """A point every 1,000 slots and 10 seconds."""
    return Curve("c", tuple(Point(1000 * n, 10 * n, loss) for n, loss in enumerate(losses, 1)))


def test_a_target_is_reached_between_points():
    assert curve(8, 7, 6).reaches(6.5) == Point(2500, 25, 6.5)
    assert curve(8, 7, 6).reaches(7) == Point(2000, 20, 7)
    assert curve(8, 7).reaches(9) == Point(1000, 10, 8)  # before the first point nothing is known
    assert curve(8, 6, 7, 6).reaches(6.5) == Point(1750, 17.5, 6.5)  # the first time
    assert curve(8, 7).reaches(6.9) is None


def test_the_fastest_curve_is_chosen_among_those_that_arrive():
    slow, fast, never = curve(8, 7, 6), curve(7, 5), curve(9, 8)
    assert best([never, slow, fast], 6) is fast
    assert best([never], 6) is None
    assert row(never, 6, slow.end)[1:4] == ["not reached", "not reached", ""]
    assert row(fast, 6, slow.end)[2:4] == ["15", "2.00"]


@pytest.mark.parametrize(
    ("shortest", "tries", "tried"),
    [(0, 5, [0, -1]), (-2, 9, [0, -1, -2, -3]), (2, 9, [0, 1, 2]), (2, 2, [0, 1]), (-5, 3, [0, -1, -2])],
)
def test_the_shortest_length_that_arrives_is_looked_for(shortest, tries, tried):
    found: dict[int, bool] = {}
    while (rung := next_rung(found, tries)) is not None:
        found[rung] = rung >= shortest
    assert list(found) == tried


ALL = [idea for idea in IDEAS if idea != "scaled init"]  # which ModernBERT's form has anyway


@pytest.mark.parametrize("ideas", [[], list(OURS), ALL, *([idea] for idea in IDEAS)], ids=str)
@pytest.mark.parametrize("size", [SMALL, BASE])
def test_recipes_are_configs_of_the_length_that_was_asked_for(ideas, size):
    values = values_of(ideas, size, 1e-3, 10_000_000) | {"run.dir": "x", "data.train": "x"}
    config = Config.model_validate(nested(values))
    assert len({stage.global_batch_size * stage.seq_len for stage in config.stages}) == 1
    slots = config.train.steps * config.stages[-1].global_batch_size * SEQ_LEN
    assert slots == pytest.approx(10_000_000, rel=0.01)
    assert config.stages[-1].seq_len == SEQ_LEN
    assert 0 < config.schedule.warmup_steps < config.train.steps
