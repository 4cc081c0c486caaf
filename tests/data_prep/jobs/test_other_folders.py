"""Folders of a wrong kind: the message names the kind, and nothing is written to the folder."""

import json

import pytest

from data_prep.storage import not_a
from tests.support.datasets import make_dataset
from tests.support.in_process import command
from tests.support.runs import tiny_config, write_config

OTHER = {
    "set": "a data set folder",
    "split": "a data set folder",
    "unfinished": "an unfinished data set folder",
    "model": "a Hugging Face model folder",
    "tok": "a tokenizer folder",
    "study": "a study folder",
    "home": "a folder of other files",
    "empty": "an empty folder",
    "text.txt": "a file",
    "run/checkpoints/step-00000001": "a checkpoint",
    "runs": "a folder of runs",
    "run": "a run folder",
}
RUN_COMMANDS = {
    "checkpoints": ["checkpoints", "FOLDER"],
    "report": ["report", "FOLDER"],
    "export": ["export", "FOLDER"],
    "status": ["status", "FOLDER"],
    "stop": ["stop", "FOLDER"],
    "replay": ["replay", "FOLDER", "--step", "1"],
    "track sync": ["track", "sync", "FOLDER"],
    "track models": ["track", "models", "FOLDER"],
    "track models --register": ["track", "models", "FOLDER", "--register", "n"],
}
DATA_COMMANDS = {
    "prep info": ["prep", "info", "FOLDER"],
    "prep verify": ["prep", "verify", "FOLDER"],
    "prep show": ["prep", "show", "FOLDER", "0"],
    "prep weights": ["prep", "weights", "FOLDER", "--out", "w", "--frequency", "1"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind."""
    tmp_path = tmp_path_factory.mktemp("place")
    for name in ("split/prep", "unfinished/prep", "unfinished/shards", "model", "tok", "study", "home", "empty"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    make_dataset(tmp_path / "set", [[5, 6, 7]])
    make_dataset(tmp_path / "split" / "train", [[5, 6, 7]])
    files = {"model/config.json": {}, "tok/tokenizer.json": {}, "study/study.json": {}, "home/notes.json": {}}
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "home" / "config.yaml").write_text("editor: vi\n")  # of another program
    (tmp_path / "text.txt").write_text("text")
    for run in ("run", "runs/a", "runs/b"):
        (tmp_path / run / "checkpoints/step-00000001/deepspeed").mkdir(parents=True)
        (tmp_path / run / "checkpoints/step-00000001/manifest.json").write_text("{}")
        write_config(tmp_path / run / "config.yaml", tiny_config(tmp_path, tmp_path / run))
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "b"}\n')
    return tmp_path


@pytest.fixture
def place(folders, monkeypatch):
    monkeypatch.chdir(folders)
    return folders


def everything(place):
    return sorted(path for path in place.rglob("*") if path.name != "mlflow.db")


def test_each_kind_is_known(place):
    for name, kind in OTHER.items():
        assert str(not_a(place / name, "a wish", "Do it.")) == f"{place / name} is {kind}, not a wish. Do it."


@pytest.mark.parametrize("words", RUN_COMMANDS.values(), ids=RUN_COMMANDS)
def test_what_is_not_a_run_folder_is_named(place, words):
    before = everything(place)
    for folder, kind in OTHER.items():
        several = folder == "runs" and words[0] in ("status", "stop", "track")
        if kind == "a run folder" or (several and words[1] != "models"):
            continue
        ended = command(*(folder if word == "FOLDER" else word for word in words))
        assert (ended.code, ended.out) == (1, ""), (folder, ended)
        assert ended.err.startswith(f"error: {folder} is {kind}, not a run folder. Name "), ended.err
        assert len(ended.err.splitlines()) == 1
        assert len(ended.err) <= 310
    missing = command(*("runs/none" if word == "FOLDER" else word for word in words))
    assert (missing.code, missing.out) == (1, "")
    assert f"error: runs/none does not exist (working directory: {place}). Name a run folder" in missing.err
    assert everything(place) == before


def test_a_run_is_proposed_where_there_is_one(place):
    assert "Name one of its runs: runs/a, runs/b" in command("export", "runs").err
    assert f"Name its run: {place / 'run'}" in command("report", "run/checkpoints/step-00000001").err


@pytest.mark.parametrize("words", DATA_COMMANDS.values(), ids=DATA_COMMANDS)
def test_what_is_not_a_data_set_is_named(place, words):
    before = everything(place)
    for folder, kind in OTHER.items():
        if "data set" in kind or kind == "a file":
            continue
        ended = command(*(folder if word == "FOLDER" else word for word in words))
        assert (ended.code, ended.out) == (1, ""), (folder, ended)
        assert f"{folder} is {kind}, not a data set folder. Name the folder that" in ended.err
    assert everything(place) == before


@pytest.mark.parametrize(
    "words", [["task", "FOLDER", "0"], ["task", "FOLDER", "--stage", "resolve"], ["merge", "FOLDER"]]
)
def test_what_has_no_plan_is_named(place, words):
    for folder in ("run", "set", "model", "home"):
        ended = command("prep", *(folder if word == "FOLDER" else word for word in words))
        assert ended.err == (
            f"error: {folder} is {OTHER[folder]}, not the folder of a plan. "
            "Name the --out of `maskwright prep run --plan-only`.\n"
        )


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "FOLDER", "--data", "set"],
        ["finetune", "FOLDER", "--task", "classification", "--train", "a.jsonl", "--valid", "a.jsonl", "--out", "o"],
        ["generate", "FOLDER"],
    ],
    ids=["evaluate", "finetune", "generate"],
)
def test_what_is_no_model_is_named(place, words):
    before = everything(place)
    for folder in ("set", "tok", "home", "empty"):
        ended = command(*(folder if word == "FOLDER" else word for word in words))
        assert (ended.code, ended.out) == (1, "")
        assert f"{folder} is {OTHER[folder]}, not a Hugging Face model folder or a run folder." in ended.err
    assert everything(place) == before
