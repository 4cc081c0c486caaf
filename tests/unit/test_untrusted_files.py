"""Files of a run folder that come from somebody else: links lead nowhere."""

import os
import threading
from pathlib import Path

import pytest

from data_prep.errors import UserError
from pretrain.lines import LineFile
from pretrain.run_folder import RunFolder
from pretrain.tracking.artifacts import open_inside, private_copy


def test_files_of_the_folder_are_opened(tmp_path: Path) -> None:
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    (tmp_path / "run" / "a" / "b" / "file").write_text("inside")
    (tmp_path / "link to the run").symlink_to(tmp_path / "run")  # the user's own, which is fine
    with open_inside(tmp_path / "link to the run", "a/b/file") as file, private_copy(file, "file") as copy:
        assert copy.read_text() == "inside"
        assert copy.name == "file"
        assert copy.parent.stat().st_mode & 0o077 == 0
    assert not copy.exists()


@pytest.mark.parametrize(
    "name", ["../secret", "a/../../secret", "link", "folder/secret", "a", "pipe", "", "a\0", "x" * 999]
)
def test_nothing_else_is_opened(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    (run / "a").mkdir(parents=True)
    (tmp_path / "secret").write_text("outside")
    (run / "link").symlink_to(tmp_path / "secret")
    (run / "folder").symlink_to(tmp_path)
    os.mkfifo(run / "pipe")
    for refused in (name, str(tmp_path / "secret")):
        with pytest.raises((OSError, ValueError)):
            open_inside(run, refused)


def test_a_folder_that_is_swapped_for_a_link_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    for folder, text in ((run / "real", "inside"), (outside, "outside")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)
    (run / "link").symlink_to(outside)
    (run / "real").rename(run / "now")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (run / "now").rename(run / "real")
            (run / "link").rename(run / "now")
            (run / "now").rename(run / "link")
            (run / "real").rename(run / "now")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = []
    try:
        for _ in range(20_000):
            try:
                with open_inside(run, "now/file") as file:
                    seen.append(file.read())
            except OSError:
                continue
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 100
    assert set(seen) == {b"inside"}


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
        LineFile(run.journal)
    (run.path / ".lock").symlink_to(theirs)
    with pytest.raises(UserError, match="is a symbolic link"):
        run.lock()
    assert theirs.read_text() == "export A=1\nno newline at the end"
