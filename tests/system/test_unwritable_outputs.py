"""Unwritable outputs: refused before the work, without advice to retry if a retry cannot help."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.common.errors import cannot_write, interrupted, is_lasting, unforeseen
from data_prep.tokenizer import train_tokenizer
from tests.support.disks import mounted
from tests.support.in_process import command, refused
from tests.support.prep import jsonl, texts
from tests.support.runs import environment, tiny_config, write_config

LASTING = ("EROFS", "EACCES", "EPERM", "ENAMETOOLONG", "ENOTDIR", "EISDIR", "ELOOP", "EEXIST")
PASSING = ("ENOSPC", "EDQUOT", "EIO", "ENETDOWN", "ETIMEDOUT", "ESTALE", "EMFILE", "ENOMEM")


def error_of(name: str, path: str | None) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize("name", LASTING)
def test_what_no_retry_cures(name):
    assert is_lasting(error_of(name, "o"))
    for path in ("o", "o/shards/00000-00000.tar", None):
        said = str(interrupted(error_of(name, path), Path("o")))
        assert said.startswith(f"Cannot write to {'o' if name == 'ENAMETOOLONG' else path or 'o'}"), said
        assert said.endswith("--out.")
        assert "again" not in said
    unread = str(interrupted(error_of(name, "/data/a.jsonl"), Path("o")))
    assert unread.startswith("Cannot read or write /data/a.jsonl: ")
    assert "permissions" in unread
    assert "again" not in unread + unforeseen(error_of(name, "/x"))


@pytest.mark.parametrize("name", PASSING)
def test_what_a_retry_may_cure(name):
    assert not is_lasting(error_of(name, "o"))
    said = str(interrupted(error_of(name, "o/shards/x"), Path("o")))
    assert "Finished work is kept: " in said
    assert said.endswith("run the same command again.")
    assert ("make room" in said) == (name in ("ENOSPC", "EDQUOT"))


def test_a_long_name_is_shortened():
    long = str(cannot_write("x" * 5000, error_of("ENAMETOOLONG", "x")))
    assert long.endswith("Choose a shorter --out.")
    assert len(long) < 200


@pytest.fixture
def source(tmp_path):
    train_tokenizer(texts(0, 50), "wordpiece", 100, tmp_path / "tok")
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 20)))
    return tmp_path


@pytest.fixture
def read_only(tmp_path):
    """A file system that takes no more; what `fill` put there stays."""
    with mounted(tmp_path / "disk", "1m") as folder:
        yield folder


def protect(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def prep_run(source: Path, out: Path | str, *options: str) -> list[str | Path]:
    words = ["prep", "run", "--input", source / "a.jsonl", "--tokenizer", source / "tok"]
    return [*words, "--out", out, *(options or ("--workers", "1"))]


def test_a_read_only_file_system(source, read_only):
    run = read_only / "run"
    (run / "checkpoints").mkdir(parents=True)
    write_config(run / "config.yaml", tiny_config(read_only, run))
    protect(read_only)
    ro = "read-only file system. Choose another --out."
    commands = {
        "prep run": (prep_run(source, read_only / "o"), f"{read_only / 'o'}: {ro}"),
        "prep run --plan-only": (prep_run(source, read_only / "o", "--plan-only"), ro),
        "tokenizer train": (["tokenizer", "train", "--input", source / "a.jsonl", "--out", read_only / "t"], ro),
        "export": (["export", run], ro),
        "report": (["report", run], ro),
    }
    for name, (words, expected) in commands.items():
        said = refused(*words)
        assert said.startswith("error: Cannot write to "), (name, said)
        assert said.endswith(expected), (name, said)


def test_a_preparation_that_becomes_read_only(source, read_only):
    """Protected after it began: the same message as before the work, not an interruption."""
    assert command(*prep_run(source, read_only / "o", "--plan-only")).code == 0
    protect(read_only)
    said = refused("prep", "task", read_only / "o", "0")
    assert said.startswith(f"error: Cannot write to {read_only / 'o'}")
    assert said.endswith("read-only file system. Choose another --out.")


def test_names_that_no_file_can_have(source):
    (source / "loop").symlink_to(source / "loop")
    file, loop = source / "a.jsonl", source / "loop" / "o"
    reasons = {"x" * 300: "file name too long", loop: "too many levels of symbolic"}
    reasons |= {file: "not a d", file / "o": "not a d"}
    for out, reason in reasons.items():
        said = refused(*prep_run(source, out))
        assert said.startswith("error: Cannot write to ")
        assert reason in said
        assert "again" not in said


def test_a_folder_of_somebody_else(source):
    """In a process without root's right to write everywhere."""
    (source / "theirs").mkdir(mode=0o555)
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    try:
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "launchers.cli", *map(str, prep_run(source, source / "theirs" / "o"))],
            env=environment(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("root needs setpriv to give up its right to write everywhere")
    assert done.returncode == 1
    assert done.stderr == f"error: Cannot write to {source}/theirs/o: permission denied. Choose another --out.\n"
    assert os.listdir(source / "theirs") == []
