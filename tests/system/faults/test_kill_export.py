"""Exports that are killed at any time: no incomplete export remains, and the command can be repeated."""

import random
import shutil
import time
from pathlib import Path

import pytest

from tests.support import runs, text_data
from tests.support.forked import Forked
from tests.support.prep import tree


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A trained run, with a tokenizer."""
    folder = tmp_path_factory.mktemp("run")
    data = text_data.text_data(folder)
    return runs.trained(data, folder / "run", train__steps=4, checkpoint__every_steps=4, eval__every_steps=100)


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory) -> tuple[dict[str, str], float]:
    """An export left alone, and how long it took."""
    out, start = tmp_path_factory.mktemp("whole") / "model", time.monotonic()
    runs.succeed("export", run, "--out", out)
    return tree(out), time.monotonic() - start


def test_several_commands_export_one_run_at_once(run, whole, tmp_path):
    """As evaluate and finetune do, started side by side on a run that is not exported yet."""
    asked = [runs.start_maskwright(tmp_path / f"log{n}", "export", run, "--out", tmp_path / "model") for n in range(3)]
    codes = [command.wait(120) for command in asked]
    said = [(tmp_path / f"log{n}").read_text() for n, code in enumerate(codes) if code]
    assert 0 in codes
    assert all("by another process meanwhile" in one or "is not an empty folder" in one for one in said)
    assert tree(tmp_path / "model") == whole[0]


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_an_export_is_whole_or_not_there(run, whole, tmp_path, kills):
    wanted, seconds = whole
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= wanted.keys()
    out, rng = tmp_path / "model", random.Random(f"export {kills}")
    for _ in range(kills):
        command = runs.start_maskwright(tmp_path / "log", "export", run, "--out", out)
        assert isinstance(command, Forked), "on GPUs nothing is forked"
        if rng.random() < 0.5:  # most of the time goes by before the first file is written
            while not any(tmp_path.glob(".model.*.tmp")) and command.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.2 * seconds))
        else:
            time.sleep(rng.uniform(0, seconds))
        command.kill()
        command.wait(30)
        if out.exists():
            assert tree(out) == wanted
            shutil.rmtree(out)
    runs.succeed("export", run, "--out", out)
    assert tree(out) == wanted
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []
