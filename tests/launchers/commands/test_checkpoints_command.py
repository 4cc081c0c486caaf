"""`maskwright checkpoints` in this process, on checkpoints with files that the test writes."""

import json

import fsspec
import pytest
import yaml
from typer.testing import CliRunner

from pretrain.run import RunFolder
from tests.support.checkpoints import MODEL, make_checkpoint
from tests.support.in_process import app


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A run with checkpoints of steps 10, 20 and 30, all but 20 kept."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    settings = {"every_steps": 10, "keep": 1, "keep_every": 10, "remote": f"memory://{tmp_path.name}"}
    config = {"run": {"dir": "x"}, "data": {"train": "x"}, "train": {"steps": 5}, "checkpoint": settings}
    folder.config.write_text(yaml.safe_dump(config))
    for step in (10, 20, 30):
        make_checkpoint(folder.checkpoints, step)
    fsspec.filesystem("memory").pipe(f"/{tmp_path.name}/step-00000020/manifest.json", b"x")
    fsspec.filesystem("memory").pipe(f"/{tmp_path.name}/step-00000005/manifest.json", b"x")
    return folder


def invoke(run: RunFolder, *options: str):
    return CliRunner().invoke(app, ["checkpoints", str(run.path), *options])


def test_sound_checkpoints_are_listed_newest_first(run):
    result = invoke(run)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[0] == ["step", "saved", "size", "state", "kept", "remote"]
    assert [(words[0], words[5], words[-1]) for words in lines[1:4]] == [
        ("30", "verified", "no"),
        ("20", "verified", "yes"),
        ("10", "verified", "no"),
    ]
    assert "newest" in result.output.splitlines()[1]
    assert "every 10" in result.output.splitlines()[2]
    assert lines[4][-1] == "5", "a copy without an original"
    found = json.loads(invoke(run, "--json").stdout)["checkpoints"]
    assert [(row["step"], row["bytes"] > 6000, row["verified"], row["kept"]) for row in found] == [
        (30, True, True, "newest"),
        (20, True, True, "every 10"),
        (10, True, True, "every 10"),
    ]


def test_damage_is_named_and_the_exit_code_says_so(run):
    path = run.checkpoints / "step-00000020" / MODEL
    path.write_bytes(path.read_bytes()[::-1])
    result = invoke(run)
    assert result.exit_code == 1
    assert result.output.count("verified") == 2
    assert f"damaged: {path} differs from its checksum" in result.output
    result = invoke(run, "--quick")
    assert result.exit_code == 0, "its size is right"
    assert result.output.count("sizes are right") == 3
    path.write_bytes(b"short")
    assert invoke(run, "--quick").exit_code == 1
