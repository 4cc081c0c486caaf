"""The benchmarks and experiments load: few tests run them."""

import importlib
import multiprocessing

from benchmarks.harness import write_page
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
