"""Runs that start from an exported model with another tokenizer, or from a smaller one."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.export import export_run
from tests.support import runs, text_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with `data`, and `model`, trained on it for 60 steps."""
    folder = tmp_path_factory.mktemp("start")
    data = text_data.text_data(folder)
    train(folder / "small", data, steps=60)
    export_run(folder / "small", None, folder / "model")
    return folder


def train(run: Path, data: Path, steps: int = 1, **model: Any) -> tuple[float, str]:
    """The loss of a run's first step, and what the run printed."""
    config = runs.tiny_config(data, run, train__steps=steps, checkpoint__every_steps=steps, eval__every_steps=steps)
    config["model"] |= model
    config["optim"]["lr"] = 5e-3
    result = runs.succeed("train", runs.write_config(run.with_suffix(".yaml"), config), "--procs", "1")
    return runs.losses(run)[1], result.stderr


@pytest.mark.slow
def test_a_run_starts_from_a_model_with_another_tokenizer(folder, tmp_path):
    text, tokenizer = folder / "text.jsonl", tmp_path / "tok"
    runs.succeed("tokenizer", "train", "--input", text, "--kind", "bpe", "--vocab-size", "450", "--out", tokenizer)
    options = ("--tokenizer", tokenizer, "--valid-fraction", "0.1")
    runs.succeed("prep", "run", "--input", text, *options, "--out", tmp_path / "data")
    own = {"init": str(folder / "model"), "init_vocabulary": "pieces"}
    started, said = train(tmp_path / "started", tmp_path / "data", **own)
    random, _ = train(tmp_path / "random", tmp_path / "data")
    assert started < random - 0.5
    assert "model.init: of 366 tokens, " in said


@pytest.mark.slow
def test_a_run_starts_from_a_smaller_model(folder, tmp_path):
    larger = {"size": {"layers": 3, "hidden": 48, "heads": 3}}
    own = {"init": str(folder / "model"), "init_size": "tile"}
    started, _ = train(tmp_path / "started", folder / "data", **larger, **own)
    random, _ = train(tmp_path / "random", folder / "data", **larger)
    assert started < random - 0.5
