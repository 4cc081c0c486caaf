"""Untrusted files of a run folder: links are not followed, pipes do not block, and lines are limited."""

import contextlib
import itertools
import os
import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from data_prep.common.files import AppendLog, open_below, text_or_none
from pretrain.checkpoint import committed
from pretrain.run import Entry, JournalReader, RunFolder


def test_training_changes_no_file_behind_a_link(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    theirs = tmp_path / ".bashrc"
    theirs.write_text("export A=1\nno newline at the end")
    for path in (run.journal, run.path / ".lock"):
        path.symlink_to(theirs)
        with pytest.raises(UserError, match=f"{path} is a symbolic link"):
            run.create()
        path.unlink()
    run.journal.symlink_to(theirs)
    with pytest.raises(OSError, match="is a symbolic link"):
        AppendLog(run.journal)
    (run.path / ".lock").symlink_to(theirs)
    with pytest.raises(UserError, match="is a symbolic link"):
        run.lock()
    assert theirs.read_text() == "export A=1\nno newline at the end"


@pytest.mark.parametrize("name", ["checkpoints", "exports", "tokenizer", "slurm"])
def test_no_folder_of_a_run_is_a_link(tmp_path: Path, name: str) -> None:
    run, theirs = RunFolder(tmp_path / "run"), tmp_path / "theirs"
    for folder in (run.path, theirs / "step-00000004"):
        folder.mkdir(parents=True)
    (run.path / name).symlink_to(theirs)
    uses = {"checkpoints": lambda: committed(run.checkpoints), "exports": lambda: run.export_of(4)}
    for use in (run.create, uses.get(name, run.create)):
        with pytest.raises(UserError, match=f"{name} is a symbolic link"):
            use()
    assert [path.name for path in theirs.iterdir()] == ["step-00000004"]


READERS: dict[str, Callable[[RunFolder], object]] = {
    ".lock": lambda run: (run.is_held(), run.holder()),
    "STOP": lambda run: run.is_asked_to_end(),
    "journal.jsonl": lambda run: JournalReader(run.journal).latest(),
    "models.log": lambda run: text_or_none(run.models_log),
    "status.json": lambda run: run.status_or_none(),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path)
    os.mkfifo(tmp_path / name)
    signal.alarm(5)  # ends the test if it waits
    READERS[name](run)
    with pytest.raises(UserError, match=f"{name} is a pipe"):
        run.create()
    for open_it in (run.lock, lambda: AppendLog(run.journal)):
        with contextlib.suppress(UserError, OSError):
            open_it()
    signal.alarm(0)


def test_a_file_below_a_folder_is_opened_without_following_a_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for place in (folder / "inner", outside):
        place.mkdir(parents=True)
        (place / "file").write_text(place.name)
    (folder / "link").symlink_to(outside / "file")
    (folder / "linked").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    with open_below(folder, "inner/file") as file:
        assert file.read() == b"inner"
    for name in ("link", "linked/file", "pipe", "../outside/file", str(outside / "file"), "", ".", "inner", "no\0"):
        with pytest.raises((OSError, ValueError)):
            open_below(folder, name)


def test_a_long_line_of_a_journal_needs_little_memory(tmp_path: Path) -> None:
    lines = [Entry(1, 1.0, {"a": 1.0}).to_line(), b"[" + bytes(150 << 20) + b"\n", Entry(2, 2.0, {"a": 2.0}).to_line()]
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    os.truncate(path, path.stat().st_size + (150 << 20))  # the start of another line
    tracemalloc.start()
    entries = [(end, entry and entry.step) for end, entry in JournalReader(path).lines()]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ends = list(itertools.accumulate(map(len, lines)))
    assert entries == [(ends[0], 1), (ends[1], None), (ends[2], 2)]
    assert most < 75 << 20
