"""Preparations killed before any change to the file system: the same command gives the same bytes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from data_prep.jobs import PreparationSettings
from data_prep.tokenizer import train_tokenizer
from tests.support.forked import ROOT
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


def die_before_each_change(folder: Path) -> None:
    """With near duplicates, an evaluation set and a held-out part: all kinds of files that a preparation writes."""
    settings = PreparationSettings(valid_fraction=0.2, deduplicate="near")
    rows = [*texts(0, 24), *texts(0, 8), "{broken"]
    (folder / "a.jsonl").write_bytes(jsonl(rows) + b"{broken\n")
    (folder / "eval.txt").write_text("\n".join(texts(3, 5)))
    train_tokenizer(texts(0, 24), "wordpiece", 120, folder / "tok")
    evaluation = [folder / "eval.txt"]

    def work(out: Path) -> Callable[[], object]:
        return lambda: prepare_files([folder / "a.jsonl"], folder / "tok", out, 1, settings, evaluation=evaluation)

    work(folder / "undisturbed")()
    expected, out, changes = tree(folder / "undisturbed"), folder / "out", 0
    while not survived(work(out), out, changes):
        work(out)()
        assert tree(out) == expected, f"died before change {changes + 1}"
        shutil.rmtree(out)
        changes += 1
    assert changes > 40


def test_a_death_before_any_change_costs_nothing(tmp_path):
    """In a small process, which forks much faster than one that has imported all that tests need."""
    program = [sys.executable, "-m", "tests.system.faults.test_prep_dies_anywhere", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    os.fsync = lambda descriptor: None  # it takes most of the time, and matters only where the machine dies
    die_before_each_change(Path(sys.argv[1]))
