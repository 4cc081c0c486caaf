"""Benchmarks are not run by tests, but they must at least load: they follow the code that they measure."""

import importlib
import multiprocessing

from tests.support.forked import ROOT


def load(names: list[str]) -> None:
    for name in names:
        importlib.import_module(f"benchmarks.{name}")


def test_the_benchmarks_load():
    """In a fork of this process, which has imported most of what they need."""
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    assert "loader" in names
    loading = multiprocessing.get_context("fork").Process(target=load, args=(names,))
    loading.start()
    loading.join(120)
    assert loading.exitcode == 0
