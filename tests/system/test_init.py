"""From a text to a filled mask without an edited file: `maskwright init`, `train` and `fill`, and `maskwright demo`."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import configs
from tests.support import runs
from tests.support.in_process import refused
from tests.support.runs import environment, maskwright, status, succeed

TEXT = Path(configs.__file__).parent / "demo/books.jsonl.zst"
FEW = ("train.steps=6", "schedule.warmup_steps=2", "eval.every_steps=6", "track.models=none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the three commands ran."""
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "text").mkdir()
    shutil.copy(TEXT, folder / "text")
    for words in (("init", "text", "--minutes", "0.1"), ("train", "my-model.yaml", *FEW)):
        succeed(*words, cwd=folder)
    return folder


def test_three_commands_lead_to_a_filled_mask(folder):
    config = yaml.safe_load((folder / "my-model.yaml").read_text())
    assert config["train"]["steps"] == 100  # the shortest run; FEW replaces it
    assert status(folder / "runs/my-model")["state"] == "completed"
    sentence = "The little [MASK] sat down [MASK] the fire."
    shown = succeed("fill", "runs/my-model", sentence, "--top", "3", cwd=folder)
    assert "The little [MASK 1] sat down [MASK 2] the fire." in shown.stdout
    answered = maskwright("fill", "runs/my-model", sentence, "--top", "3", "--json", cwd=folder)
    (filled,) = json.loads(answered.stdout)
    assert filled["text"] == sentence
    assert [len(tokens) for tokens in filled["masks"]] == [3, 3]
    for tokens in filled["masks"]:
        shares = [token["probability"] for token in tokens]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1
        assert all(f'"{token["token"]}"' in shown.stdout for token in tokens)


def test_the_printed_commands_are_those_that_ran(folder):
    text = (folder / "my-model.yaml").read_text()
    printed = [line.removeprefix("#   maskwright ") for line in text.splitlines() if line.startswith("#   maskwright ")]
    assert [line.split()[0] for line in printed] == ["tokenizer", "prep", "train", "fill"]
    again = maskwright(*printed[1].split(), cwd=folder)
    assert "already finished" in again.stdout


def test_an_existing_config_is_kept(folder):
    assert "my-model.yaml exists" in refused("init", "text", cwd=folder)


def test_init_without_preparation_writes_only_the_config(tmp_path):
    result = succeed("init", TEXT, "--no-prep", "--name", "later", "--no-lowercase", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["later.yaml"]
    assert "maskwright tokenizer train" in result.stdout
    assert "--no-lowercase" in result.stdout


def test_a_tokenizer_of_other_settings_is_not_used(tmp_path):
    words = ("init", TEXT, "--minutes", "0.002h")
    succeed(*words, cwd=tmp_path)
    (tmp_path / "my-model.yaml").unlink()  # as if it had been interrupted
    said = refused(*words, "--no-lowercase", cwd=tmp_path)
    assert "data/my-model-tokenizer was made with other settings. Remove it" in said
    assert not (tmp_path / "my-model.yaml").exists()
    assert "already finished" in succeed(*words, cwd=tmp_path).stdout


def test_what_cannot_be_prepared_is_refused_first(tmp_path):
    (tmp_path / "text.txt").write_text("one line\n" * 300)
    init = ("init", "text.txt", "--yes")
    said = refused(*init, "--separator", "page", cwd=tmp_path)
    assert said == "error: --separator is 'page'. Write blank, line or file."
    said = refused(*init, cwd=tmp_path)
    assert "The text has 1 documents" in said
    assert "--separator line makes a document of each line" in said
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
    succeed(*init, "--separator", "line", "--no-prep", cwd=tmp_path)


def test_questions_on_a_terminal(tmp_path):
    (tmp_path / "a.txt").write_text("One line.\n\nAnother line.\n")
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "launchers.cli", "init", "a.txt", "--minutes", "0.5"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(), start_new_session=True
    )
    os.write(ours, b"mine\nline\nn\nn\n")  # name, separator, lower case, preparation
    assert process.wait(timeout=120) == 0
    text = (tmp_path / "mine.yaml").read_text()
    assert "--separator line" in text
    assert "--no-lowercase" in text
    assert not (tmp_path / "data").exists()


def test_demo_goes_from_text_to_a_filled_mask_and_goes_on_when_repeated(tmp_path):
    """test_tutorials.py runs it in real processes."""
    few = ("train.steps=6", "eval.every_steps=6", "checkpoint.every_steps=6", "eval.rows=16", "track.models=none")
    result = runs.succeed("demo", "--dir", tmp_path, *few)
    run = tmp_path / "runs/demo"
    assert runs.status(run)["state"] == "completed"
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    model = run / "exports/step-00000006"
    assert json.loads((model / "config.json").read_text())["architectures"] == ["ModernBertForMaskedLM"]
    for words in ("unigram entropy of the held-out text", "held-out loss", "Emerald [MASK]", "mlflow ui", "Next: open"):
        assert words in result.stdout, words

    again = runs.succeed("demo", "--dir", tmp_path, *few)
    assert "already finished" in again.stdout
    assert runs.losses(run).keys() == set(range(1, 7))
