"""Folders of a wrong kind: the message names the kind, and nothing is written to the folder."""

import json

import pytest

from data_prep.storage import not_a
from tests.support.configs import LEAST, config_file
from tests.support.datasets import make_dataset
from tests.support.in_process import command

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
RUN_COMMANDS = [
    *("checkpoints FOLDER", "report FOLDER", "export FOLDER", "status FOLDER", "stop FOLDER", "replay FOLDER --step 1"),
    *("track sync FOLDER", "track models FOLDER", "track models FOLDER --register n"),
]
DATA_COMMANDS = [
    *("prep info FOLDER", "prep verify FOLDER", "prep show FOLDER 0", "prep weights FOLDER --out w --frequency 1"),
]


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
        config_file(tmp_path / run / "config.yaml", LEAST)
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "b"}\n')
    return tmp_path


@pytest.fixture
def place(folders, monkeypatch):
    monkeypatch.chdir(folders)
    return folders


def everything(place):
    return sorted(path for path in place.rglob("*") if path.name != "mlflow.db")


def refusal(words: str, folder: str) -> str:
    """The one-line error of a command for a folder."""
    ended = command(*words.replace("FOLDER", folder).split())
    assert (ended.code, ended.out) == (1, ""), ended
    (line,) = ended.err.splitlines()
    return line


def test_each_kind_is_known(place):
    for name, kind in OTHER.items():
        assert str(not_a(place / name, "a wish", "Do it.")) == f"{place / name} is {kind}, not a wish. Do it."


@pytest.mark.parametrize("words", RUN_COMMANDS)
def test_what_is_not_a_run_folder_is_named(place, words):
    before = everything(place)
    takes_several = words.startswith(("status", "stop", "track sync"))
    for folder, kind in OTHER.items():
        if kind == "a run folder" or (folder == "runs" and takes_several):
            continue
        said = refusal(words, folder)
        assert said.startswith(f"error: {folder} is {kind}, not a run folder. Name ")
        assert len(said) < 310
    missing = refusal(words, "runs/none")
    assert missing.startswith(f"error: runs/none does not exist (working directory: {place}). Name a run folder")
    assert everything(place) == before


def test_a_run_is_proposed_where_there_is_one(place):
    assert "Name one of its runs: runs/a, runs/b" in command("export", "runs").err
    assert f"Name its run: {place / 'run'}" in command("report", "run/checkpoints/step-00000001").err


@pytest.mark.parametrize("words", DATA_COMMANDS)
def test_what_is_not_a_data_set_is_named(place, words):
    before = everything(place)
    for folder, kind in OTHER.items():
        if "data set" in kind or kind == "a file":
            continue
        said = refusal(words, folder)
        assert f"{folder} is {kind}, not a data set folder. Name the folder that" in said
    assert everything(place) == before


@pytest.mark.parametrize("words", ["prep task FOLDER 0", "prep task FOLDER --stage resolve", "prep merge FOLDER"])
def test_what_has_no_plan_is_named(place, words):
    advice = "Name the --out of `maskwright prep run --plan-only`."
    for folder in ("run", "set", "model", "home"):
        said = refusal(f"{words} --workers 1", folder)
        assert said == f"error: {folder} is {OTHER[folder]}, not the folder of a plan. {advice}"


TUNE = "finetune FOLDER --task classification --train a.jsonl --valid a.jsonl --out o"


@pytest.mark.parametrize("words", ["evaluate FOLDER --data set", TUNE, "generate FOLDER"])
def test_what_is_no_model_is_named(place, words):
    before = everything(place)
    for folder in ("set", "tok", "home", "empty"):
        said = refusal(words, folder)
        assert f"{folder} is {OTHER[folder]}, not a Hugging Face model folder or a run folder." in said
    assert everything(place) == before
