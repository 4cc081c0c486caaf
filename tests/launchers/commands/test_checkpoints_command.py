"""`maskwright checkpoints` in this process, on checkpoints with files that the test writes."""

import json

import fsspec
import pytest

from pretrain.run import RunFolder
from tests.support.checkpoints import MODEL, make_checkpoint
from tests.support.configs import LEAST, config_file
from tests.support.in_process import invoke


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A run with checkpoints of steps 10, 20 and 30, all but 20 kept."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    settings = {"every_steps": 10, "keep": 1, "keep_every": 10, "remote": f"memory://{tmp_path.name}"}
    config_file(folder.config, LEAST | {"checkpoint": settings})
    for step in (10, 20, 30):
        make_checkpoint(folder.checkpoints, step)
    for step in (20, 5):
        fsspec.filesystem("memory").pipe(f"/{tmp_path.name}/step-{step:08}/manifest.json", b"x")
    return folder


def test_sound_checkpoints_are_listed_newest_first(run):
    result = invoke("checkpoints", run.path)
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[0] == ["step", "saved", "size", "state", "kept", "remote"]
    listed = [(words[0], words[5], words[-1]) for words in lines[1:4]]
    assert listed == [("30", "verified", "no"), ("20", "verified", "yes"), ("10", "verified", "no")]
    assert "newest" in result.output.splitlines()[1]
    assert "every 10" in result.output.splitlines()[2]
    assert lines[4][-1] == "5", "a copy without an original"
    found = json.loads(invoke("checkpoints", run.path, "--json").stdout)["checkpoints"]
    assert [(row["step"], row["kept"]) for row in found] == [(30, "newest"), (20, "every 10"), (10, "every 10")]
    assert all(row["verified"] and row["bytes"] > 6000 for row in found)


def test_a_link_in_the_place_of_a_checkpoint_is_named_and_the_others_are_listed(run, tmp_path):
    path = run.checkpoints / "step-00000020"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    output = invoke("checkpoints", run.path, code=1).output
    assert output.count("verified") == 2
    assert f"damaged: {path}/manifest.json" in output
    assert "its folder is a symbolic link" in output


def test_damage_is_named_and_the_exit_code_says_so(run):
    path = run.checkpoints / "step-00000020" / MODEL
    path.write_bytes(path.read_bytes()[::-1])
    output = invoke("checkpoints", run.path, code=1).output
    assert output.count("verified") == 2
    assert f"damaged: {path} differs from its checksum" in output
    assert invoke("checkpoints", run.path, "--quick").output.count("sizes are right") == 3, "its size is right"
    path.write_bytes(b"short")
    invoke("checkpoints", run.path, "--quick", code=1)
