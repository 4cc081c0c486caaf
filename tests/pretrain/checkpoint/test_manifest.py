"""Manifest of a checkpoint: format, step, files, and no symbolic links."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import MAX_MESSAGE
from pretrain import checkpoint
from pretrain.checkpoint import manifest
from tests.support.checkpoints import MODEL, OPTIMIZER, make_checkpoint
from tests.support.hostile_json import DIGITS, NESTED


@pytest.fixture
def path(tmp_path):
    return make_checkpoint(tmp_path, 2)


def seal(path: Path, **changes: Any) -> None:
    """Change a manifest, and give it the checksum of what it then says."""
    file = path / manifest.NAME
    values = {name: value for name, value in json.loads(file.read_text()).items() if name != "checksum"} | changes
    file.write_text(json.dumps(values | {"checksum": manifest.checksum_of(values)}))


def problem_of(path: Path, **changes: Any) -> str:
    """What verification says of a checkpoint, after changes of its manifest."""
    if changes:
        seal(path, **changes)
    problem = checkpoint.verify(path)
    assert problem
    assert len(problem) <= MAX_MESSAGE
    assert "\n" not in problem
    return problem


def test_another_version_is_not_called_damage(path):
    assert manifest.condition(problem_of(path, files={})) == "damaged"
    problem = problem_of(path, version=2, new_key=1)
    assert "was written by another version of Maskwright, in format 2; this version reads format 1" in problem
    assert manifest.condition(problem) == "of another version"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "format is 'other', not 'maskwright-checkpoint'"),
        ({"version": True}, "version is True, not 1"),
        ({"step": 3}, "it is of step 3, and its folder of step 2"),
        ({"step": "2"}, "step is '2', not a whole number"),
        ({"time": "now"}, "time is 'now', not a finite number"),
        ({"state": []}, "state is [], not an object"),
        ({"files": {}}, "it names no files"),
        ({"files": {"a": {"bytes": 1.5, "xxh3_128": ""}}}, "files.a.bytes is 1.5, not a whole number"),
        ({"files": {"a": {"bytes": 1}}}, "files.a.xxh3_128 is missing"),
        ({"other": 1}, "'other' is not a key"),
        ({"format": "x" * 10_000}, "format is 'xxx"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(path, change, said):
    assert said in problem_of(path, **change)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\0b", "a\nb", "", ".", "a//b", "manifest.json"])
def test_a_file_is_named_plainly_within_the_folder(path, name):
    assert "it names the file" in problem_of(path, files={name: {"bytes": 1, "xxh3_128": "0"}})


@pytest.mark.parametrize("content", [NESTED, f'{{"step": {DIGITS}}}', "\xff", '{"a": 1, "a": 1}', '{"checksum": {}}'])
def test_a_manifest_that_is_no_json_of_ours_is_refused(path, content):
    (path / manifest.NAME).write_bytes(content.encode("latin-1"))
    assert str(path / manifest.NAME) in problem_of(path)


def test_no_file_or_folder_of_a_checkpoint_is_a_link_or_a_pipe(path, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (path / MODEL).rename(elsewhere)
    (path / MODEL).symlink_to(elsewhere)
    assert "is a symbolic link" in problem_of(path)
    (path / MODEL).unlink()
    os.mkfifo(path / MODEL)
    assert "is a pipe, not a regular file" in problem_of(path)
    (path / MODEL).unlink()
    elsewhere.rename(path / MODEL)
    assert checkpoint.verify(path) is None
    folder = (path / OPTIMIZER).parent
    folder.rename(tmp_path / "inside")
    folder.symlink_to(tmp_path / "inside")
    assert "is a symbolic link" in problem_of(path)


def test_neither_a_checkpoint_nor_its_manifest_is_a_link(path, tmp_path):
    link = tmp_path / "step-00000003"
    link.symlink_to(path)
    assert "is a symbolic link" in problem_of(link)
    (path / manifest.NAME).rename(tmp_path / "moved")
    (path / manifest.NAME).symlink_to(tmp_path / "moved")
    assert "is a symbolic link" in problem_of(path)
