"""Untrusted files of a run folder: links are not followed."""

from pathlib import Path

import pytest

from data_prep.errors import UserError
from data_prep.files import AppendLog
from pretrain.run import RunFolder


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
