"""Models and tokenizers by their names on a local server that speaks the protocol of the Hugging Face Hub."""

import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants
from transformers import AutoModelForMaskedLM

from data_prep.common.errors import UserError
from data_prep.storage import cached_folder, fetch_from_hub, hub_models
from evaluation.study import open_sweep
from pretrain.resuming import load_to_start
from tests.support import runs
from tests.support.hub_server import Hub, Repository, Store, connect, serving_hub
from tests.support.in_process import command, refused
from tests.support.tiny_models import tiny_model
from tests.support.wordpiece_set import source, wordpiece_set

NAME = "hub:someone/tiny"
PICKLE = {"config.json": b"{}", "pytorch_model.bin": b"cos\nsystem\n", "modeling.py": b"raise SystemExit"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("model")
    data = wordpiece_set(place / "data", [[[5, 6]]], [source("a", "", 0, 1, 1, 2)])
    return tiny_model(place / "tiny", data.tokenizer_path / "tokenizer.json")


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A server with a model beside a pickle and code, in an empty cache."""
    repository = Repository(private=False)
    repository.commit("main", files_of(folder) | PICKLE | {"config.json": (folder / "config.json").read_bytes()})
    with serving_hub(Store({"hf_s3cretOfReader": "read"}, {"someone/tiny": repository})) as server:
        connect(monkeypatch, server, tmp_path / "hf")
        yield server


def head(hub: Hub) -> str:
    return hub.store.repositories["someone/tiny"].branches["main"]


def test_commands_take_a_model_of_the_hub_and_record_its_commit(hub, folder, tmp_path):
    commit = head(hub)
    ended = command("fill", NAME, "the [MASK]", "--json")
    assert (ended.code, ended.out) == (0, command("fill", folder, "the [MASK]", "--json").out), ended.err
    cached = cached_folder(f"{NAME}@{commit}")
    assert {path.name for path in cached.iterdir()} == files_of(folder).keys() - {"generation_config.json"}
    AutoModelForMaskedLM.from_pretrained(folder).save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    shards = {name: data for name, data in files_of(folder).items() if name != "model.safetensors"}
    hub.store.repositories["someone/tiny"].commit("shards", shards | files_of(tmp_path / "shards"))
    in_shards = command("fill", f"{NAME}@shards", "the [MASK]", "--json")
    assert in_shards.out == ended.out, in_shards.err
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"sentence_good": "the ship", "sentence_bad": "ship the", "UID": "a"}) + "\n")
    ended = command("evaluate", NAME, "--pairs", pairs, "--json", tmp_path / "out.json")
    assert ended.code == 0, ended.err
    assert [*json.loads((tmp_path / "out.json").read_text())["models"]] == [f"{NAME}@{commit}"]
    twice = command("evaluate", NAME, f"{NAME}@{commit}", "--pairs", pairs)
    assert "is named twice" in twice.err
    hub.store.repositories["someone/tiny"].commit("main", files_of(folder) | {"config.json": b"{}"})
    asked = hub.store.requests.total()
    assert fetch_from_hub(f"{NAME}@{commit}") == Path(f"{NAME}@{commit}")
    assert hub.store.requests.total() == asked  # a commit does not change, so the server need not be asked
    assert fetch_from_hub(NAME) == Path(f"{NAME}@{head(hub)}") != Path(f"{NAME}@{commit}")


SHARDS = {f"model-0000{n}-of-00002.safetensors": b"" for n in (1, 2)}
REFUSED = {
    "pickle": (PICKLE, {}, "has no model.safetensors, and other .*code, are not read. Name a rev"),
    "no config": ({"model.safetensors": b""}, {}, "has no config.json"),
    "no tokenizer": (PICKLE, {"weights": False}, "has no tokenizer.json"),
    "shards": ({"config.json": b"{}"} | SHARDS, {"shards": False}, "has its weights in 2 files"),
    "large": ({"tokenizer.json": bytes(5_000_000)}, {"weights": False}, "has 5 MB; at most 4 are read"),
    "large weights": ({"config.json": b"{}"} | dict.fromkeys(SHARDS, b"abc"), {}, "MB; at most"),
}


@pytest.mark.parametrize(("files", "how", "message"), REFUSED.values(), ids=REFUSED)
def test_repositories_without_a_model_that_can_be_read(hub, monkeypatch, files, how, message):
    monkeypatch.setattr(hub_models, "MAX_JSON_BYTES", 4_000_000)
    monkeypatch.setattr(hub_models, "_MAX_WEIGHTS", 5)
    hub.store.repositories["someone/tiny"].commit("main", files)
    with pytest.raises(UserError, match=f"{NAME} .*{message}" if "large" not in message else message):
        fetch_from_hub(NAME, **how)
    assert hub.store.requests["resolve"] == 0


WRONG = dict.fromkeys(
    ["hub:a/b/c", "hub:../x", "hub:a/b@../../x", "hub:a/b@", "hub:", "hub:a..b"], "is not a name of the"
)
WRONG |= {
    "hub:someone/none": "/someone/none is missing, or you may not read it. Correct",
    "hub:someone/tiny@none": "someone/tiny has no revision none",
}


@pytest.mark.parametrize(("name", "message"), WRONG.items())
def test_wrong_names(hub, name, message):
    with pytest.raises(UserError, match=message):
        fetch_from_hub(name)
    assert re.search(message, refused("fill", name, "the [MASK]"))


def test_without_a_network(hub, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    said = refused("fill", NAME + "@v1", "the [MASK]")
    assert f"{NAME}@v1 cannot be downloaded (" in said
    how = "--include '*.json' --include '*.txt' --include 'model*.safetensors' --local-dir tiny` on another machine"
    assert f"run `hf download someone/tiny --revision v1 {how}, copy the folder here, and name" in said
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    fetch_from_hub(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_from_hub(NAME) == Path(f"{NAME}@{head(hub)}")
    assert f"the Hub cannot be reached; {NAME} is commit {head(hub)} of the cache" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.store.says = lambda headers: f"Bearer {headers['Authorization']} hf_s3cretOfReader"
    hub.store.faults["info"] = [503]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    said = refused("fill", NAME, "the [MASK]")
    assert "the server answered 503" in said
    assert "s3cret" not in said


def test_a_run_begins_with_a_model_of_the_hub_and_keeps_its_commit(hub, folder, tmp_path):
    """The ranks ask no server; a resumed run has the same commit, and another one is refused."""
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "the ships sailed " * n}) + "\n" for n in range(1, 200)))
    prep = ("prep", "run", "--input", text, "--tokenizer", NAME, "--out", tmp_path / "data")
    assert command(*prep).code == 0
    commit = head(hub)
    assert json.loads((tmp_path / "data/prep/tokenizer/hub.json").read_text())["pinned"] == f"{NAME}@{commit}"
    how = {"model": {"size": {"layers": 2, "hidden": 16, "heads": 2, "intermediate": 32}, "init": NAME}}
    how |= {"data__train": str(tmp_path / "data"), "data__valid": None, "eval": {}, "train__steps": 2}
    run, config = tmp_path / "run", runs.config_file(tmp_path, tmp_path / "run", **how)
    runs.succeed("train", config, "--procs", "2")
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["init"] == f"{NAME}@{commit}"
    assert hub.store.requests["info"] <= 4  # two look-ups and two lists of files: none by a rank

    repository = hub.store.repositories["someone/tiny"]
    weights = repository.commits[commit]["model.safetensors"]
    repository.commit("main", repository.commits[commit] | {"model.safetensors": weights[:-4] + bytes(4)})
    assert command(*prep).code == 0
    asked = hub.store.requests.total()
    ended = runs.succeed("train", config, "train.steps=4")
    assert f"note: model.init is {NAME}@{commit}, as at the first start" in ended.stderr
    assert hub.store.requests.total() == asked
    assert list(runs.losses(run)) == [1, 2, 3, 4]
    job = command("launch", "slurm", config, "train.steps=4", "--cpu", "--dry-run")
    assert f"init: {NAME}@{commit}\n" in job.out, job.err
    other = command("train", config, "train.steps=6", f"model.init={NAME}@{head(hub)}")
    assert (other.code, "model.init (weights) was" in other.err) == (1, True), other.err


def test_all_arms_of_a_study_start_from_the_same_commit(hub, folder, tmp_path, monkeypatch):
    """Also when it is continued after a new commit; a name that differs between arms has the commit of each."""
    monkeypatch.chdir(tmp_path)
    repository, old = hub.store.repositories["someone/tiny"], head(hub)
    file = runs.config_file(tmp_path, tmp_path / "study", data__valid=None, eval={}, model__init=NAME)
    rates = ["optim.lr=1e-3,2e-3"]
    first = open_sweep(file, [], rates)
    assert {str(config.model.init) for config in first.configs} == {f"{NAME}@{old}"}
    save = tmp_path / "study/config.yaml"
    save.parent.mkdir()
    save.write_text(yaml.safe_dump(first.values))
    repository.commit("main", repository.commits[old] | {"README.md": b"new"})
    assert open_sweep(file, [], rates).values["model"]["init"] == f"{NAME}@{old}"
    named = open_sweep(file, [], [f"model.init={NAME},{NAME}@{old}"])
    assert [arm["model.init"] for arm in named.overrides.values()] == [f"{NAME}@{old}", f"{NAME}@{old}"]


def test_a_run_without_a_checkpoint_looks_the_name_up_again(hub, folder, tmp_path, monkeypatch, capsys):
    """A commit of an earlier start is kept with a checkpoint, by a branch and by a study. No other file is read."""
    monkeypatch.chdir(tmp_path)
    repository, old = hub.store.repositories["someone/tiny"], head(hub)
    for branch in ("main", "v2"):
        repository.commit(branch, repository.commits[old] | {"README.md": branch.encode()})
    run, step = tmp_path / "run", tmp_path / "run/checkpoints/step-00000001"
    step.mkdir(parents=True)
    file = runs.config_file(tmp_path, run, data__valid=None, eval={}, model__init=NAME)

    def commit(*overrides, **options) -> str:
        config, given = load_to_start(file, list(overrides), **options)
        assert given[-1] == f"model.init={config.model.init}"
        assert (f"note: model.init is {NAME}@{old}" in (said := capsys.readouterr().err)) == ("a new run.dir" in said)
        return str(config.model.init).partition("@")[2]

    for earlier in (tmp_path / "config.yaml", run / "config.yaml"):
        earlier.write_text(file.read_text().replace(NAME, f"{NAME}@{old}"))
    assert [commit(f"model.init={NAME}@v2"), commit("run.dir=new", f"run.resume={step}")] == [old, old]
    step.rmdir()
    assert [commit(f"model.init={NAME}@v2"), commit(keep=True)] == [repository.branches["v2"], old]
    searched = [commit("run.dir=new", f"run.resume={word}") for word in ("auto", "never", "required")]
    assert searched == [head(hub)] * 3
