"""Preparations killed before any change to the file system: the same command gives the same bytes."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from data_prep.jobs import PreparationSettings
from data_prep.tokenizer import train_tokenizer
from tests.support.prep import jsonl, prepare_files, texts, tree

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def change_in(out: Path, event: str, arguments: tuple) -> bool:
    """Whether an audit event is of a change within OUT, or that makes it."""
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
    if not (writes or event in CHANGES):
        return False
    return str(arguments[0]).startswith(str(out)) if isinstance(arguments[0], str | Path) else False


def survived(work: Callable[[], object], out: Path, changes: int) -> bool:
    """Do the work in another process, which dies after `changes` changes."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    left = changes

    def count(event: str, arguments: tuple) -> None:
        nonlocal left
        if change_in(out, event, arguments):
            left -= 1
            if left < 0:
                os._exit(9)

    sys.addaudithook(count)
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_death_before_any_change_costs_nothing(tmp_path):
    """With near duplicates, an evaluation set and a held-out part: all kinds of files that a preparation writes."""
    settings = PreparationSettings(valid_fraction=0.2, deduplicate="near")
    rows = [*texts(0, 24), *texts(0, 8), "{broken"]
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows) + b"{broken\n")
    (tmp_path / "eval.txt").write_text("\n".join(texts(3, 5)))
    train_tokenizer(texts(0, 24), "wordpiece", 120, tmp_path / "tok")
    evaluation = [tmp_path / "eval.txt"]

    def work(out: Path) -> Callable[[], object]:
        return lambda: prepare_files([tmp_path / "a.jsonl"], tmp_path / "tok", out, 1, settings, evaluation=evaluation)

    work(tmp_path / "undisturbed")()
    expected, out, changes = tree(tmp_path / "undisturbed"), tmp_path / "out", 0
    while not survived(work(out), out, changes):
        work(out)()
        assert tree(out) == expected, f"died before change {changes + 1}"
        shutil.rmtree(out)
        changes += 1
    assert changes > 40
