"""Models published to a local server that speaks the protocol of the Hugging Face Hub, and downloaded again."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import HfApi, ModelCard, constants, snapshot_download
from huggingface_hub.utils import logging
from markdown_it import MarkdownIt

from data_prep.common.errors import UserError
from pretrain.config_files import load_config
from pretrain.export import exported_folder, merge_models, revision_of
from pretrain.export.export_record import ExportRecord
from pretrain.export.publication import published_card, training_sections
from pretrain.run import RunFolder
from tests.support import runs, text_data
from tests.support.hub_server import OWNER, Store, connect, serving_hub
from tests.support.in_process import command

TOKEN, READER = "hf_s3cretOfWriter", "hf_s3cretOfReader"
NAME = f"{OWNER}/tiny"
STEPS = (2, 4, 6)
BRANCHES = [f"step-{step:08d}" for step in STEPS]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of two phases with three checkpoints, all exported."""
    folder = tmp_path_factory.mktemp("publish")
    data = text_data.text_data(folder)
    phases = [{"name": "short rows", "steps": 4, "data": {"seq_len": 16}}, {"name": "long rows", "steps": 2}]
    phases[1]["data"] = {"seq_len": 32}
    settings = {"phases": phases, "checkpoint": {"every_steps": 2, "keep": 9}, "eval__every_steps": 2}
    runs.trained(data, folder / "run", train={"global_batch_size": 8, "precision": "fp32"}, **settings)
    for step in STEPS:
        exported_folder(folder / "run", step)
    return folder / "run"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server, and the settings of a user who knows its address and has a token."""
    with serving_hub(Store({TOKEN: "write", READER: "read"})) as server:
        connect(monkeypatch, server, tmp_path / "hf")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def publish(*arguments: str | Path, code: int = 0) -> str:
    """All output of the command. No part of it has a token."""
    ended = command("publish", *arguments)
    said = ended.out + ended.err
    assert ended.code == code, said
    assert "s3cret" not in said
    assert "Traceback" not in said
    return said


def assert_published(hub, revision: str, export: Path, folder: Path) -> None:
    """The revision has the weights and the tokenizer of an export, byte for byte, and a record that fits its files."""
    cached = snapshot_download(NAME, revision=revision, endpoint=hub.url, token=False, cache_dir=folder, max_workers=1)
    files = Path(shutil.copytree(cached, f"{cached}-files", dirs_exist_ok=True))  # the cache has links
    assert {path.name for path in export.iterdir()} == {path.name for path in files.iterdir()} - {".gitattributes"}
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (files / name).read_bytes() == (export / name).read_bytes(), name
    assert ExportRecord.read(files).changed_files(files) == []


def test_every_checkpoint_is_a_revision(run, hub, tmp_path):
    arguments = (run, "--to", NAME, "--every-checkpoint", "--license", "apache-2.0")
    said = publish(*arguments)
    assert [line.partition(":")[0] for line in said.splitlines()] == [*BRANCHES, "main", "http"]
    assert said.count("uploaded") == 4
    exports = {branch: run / "exports" / branch for branch in BRANCHES} | {"main": run / "exports" / BRANCHES[-1]}
    for revision, export in exports.items():
        assert_published(hub, revision, export, tmp_path / "cache")
    asked = dict(hub.store.requests)
    assert publish(*arguments).count("up to date") == 4
    assert hub.store.requests["commit"] == asked["commit"]
    assert not [path for path in run.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]


def test_a_fault_ends_the_command_without_a_secret_and_the_next_one_finishes(run, hub):
    hub.store.says = lambda headers: f"{headers['Authorization']} {TOKEN} x:y@z https://u:s3cret@h"
    for status in (400, 500):
        hub.store.faults["commit"] = [status]
        said = publish(run, "--to", NAME, code=1)
        assert f"Uploading main failed (the server answered {status} a fault on request, Bearer *** hf_*** " in said
        assert "x:y@z https://***@h). Check the network" in said
        assert "run the same command again" in said
    assert "uploaded" in publish(run, "--to", NAME)


REFUSALS = (
    ("RUN --to other/tiny", {}, "may not write to other/tiny"),
    (f"RUN --to {OWNER}/tiny", {"HF_TOKEN": READER}, f"may not write to {OWNER}/tiny"),
    (f"RUN --to {OWNER}/tiny", {"HF_TOKEN": "hf_s3cretWrong"}, "refuses your token"),
    (f"RUN --to {OWNER}/tiny", {"HF_TOKEN": ""}, "There is no token"),
    (f"RUN --to {OWNER}/tiny", {"ENDPOINT": "http://127.0.0.1:9"}, "Check the network and http://127.0.0.1:9"),
    (f"RUN --to {OWNER}/tiny --dry-run --out OUT --data-license books=", {}, "Write a licence, or SOURCE=LICENCE."),
    (f"RUN --to {OWNER}/tiny --dry-run --out OUT --results OTHER", {}, "has no results of"),
)


def test_refusals_are_one_clear_message(run, hub, monkeypatch, tmp_path):
    places = {"RUN": run, "OUT": tmp_path / "out", "OTHER": tmp_path / "other"}
    places["OTHER"].write_text(json.dumps({"settings": {}, "models": {"models/other": {}}, "comparisons": []}))
    for arguments, environment, message in REFUSALS:
        with monkeypatch.context() as changed:
            for name, value in environment.items():
                changed.setattr(constants, name, value) if name == "ENDPOINT" else changed.setenv(name, value)
            said = publish(*(places.get(word, word) for word in arguments.split()), code=1)
        assert message in said.splitlines()[-1], arguments
    assert not hub.store.repositories
    assert not places["OUT"].exists()


def test_metadata_that_the_hub_refuses_stay_local(run, hub):
    hub.store.wrong_metadata = ['"license" must be one of a list']
    said = publish(run, "--to", NAME, "--license", "free", code=1)
    assert 'The model card was refused: "license" must be one of a list' in said
    assert not hub.store.repositories, "no empty repository is left"


def test_signed_addresses_are_not_printed(run, hub, monkeypatch):
    """huggingface_hub puts them into its warnings and errors."""
    logging.set_verbosity_warning()

    def create_commit(*_, **__):
        assert logging.get_verbosity() == logging.ERROR
        raise OSError("no answer from https://h/x?X-Signature=s1gned")

    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    said = publish(run, "--to", NAME, code=1)
    assert "Uploading main failed (no answer from https://h/x)" in said
    assert "s1gned" not in said


def test_a_private_model_is_never_uploaded_to_a_public_repository(run, hub):
    publish(run, "--to", NAME, "--private")
    assert hub.store.repositories[NAME].private
    hub.store.repositories[NAME].private = False
    assert "exists and is public" in publish(run, "--to", NAME, "--private", code=1)


def test_the_card(run, tmp_path, monkeypatch):
    """A dry run needs no token. Its card has figures with intervals, and a config that repeats the run."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    out, results = tmp_path / "out", tmp_path / "results.json"
    valid = run.parent / "data/valid"
    pairs = tmp_path / "pairs.jsonl"
    pair = {"sentence_good": "the king saw the red ship.", "sentence_bad": "the king saw ship red the.", "UID": "order"}
    pairs.write_text("".join(json.dumps(pair | {"pairID": str(number)}) + "\n" for number in range(3)))
    runs.succeed("evaluate", run, "--data", valid, "--pairs", pairs, "--json", results)
    arguments = ("--to", NAME, "--dry-run", "--out", out, "--license", "mit")
    arguments += ("--data-license", "books=CC0 1.0", "--data-license", "unknown")
    said = publish(run, *arguments, "--every-checkpoint", "--results", results)
    assert [line.partition(":")[0] for line in said.splitlines()] == [*BRANCHES, "main"]

    card = ModelCard.load(out / "main" / "README.md")
    evaluation = json.loads(results.read_text())["models"][str(run)]
    metrics = {one.metric_name: one for one in card.data.eval_results}
    assert metrics["held-out loss, nats"].metric_value == evaluation["held_out"]["loss"]
    low, high = metrics["held-out loss, nats"].metric_args["interval_95"]
    assert low < evaluation["held_out"]["loss"] < high
    assert metrics["accuracy on minimal pairs"].metric_args["interval_95"] == evaluation["pairs"]["interval"]
    assert card.data.license == "mit"
    assert card.data.pipeline_tag == "fill-mask"
    assert f'model="{NAME}"' in card.text
    for words in (
        "| phase short rows | steps 1 to 4 |",
        "| phase long rows | steps 5 to 6 |",
        "| text.jsonl |",
        "| books | CC0 1.0 |\n| all text | unknown |",
    ):
        assert words in card.text, words
    fingerprint = json.loads((run / "environment.json").read_text())["data"][0]["fingerprint"]
    assert f"`{fingerprint}`" in card.text.partition("## Training data")[2]
    assert str(run.parent) not in (out / "main" / "README.md").read_text()

    (tmp_path / "config.yaml").write_text(card.text.partition("```yaml\n")[2].partition("```")[0])
    ours, theirs = load_config(run / "config.yaml"), load_config(tmp_path / "config.yaml")
    assert [one.changes for one in theirs.run_phases] == [one.changes for one in ours.run_phases]
    assert (theirs.optim, theirs.model, theirs.run.seed) == (ours.optim, ours.model, ours.run.seed)

    earlier = (out / BRANCHES[0] / "README.md").read_text()
    assert "| steps | 2 of 6 |" in earlier
    assert "long rows" not in earlier.partition("## Reproduce")[0]
    assert "model-index" not in yaml.safe_load(earlier.split("---\n")[1])


def test_the_card_repeats_a_rotary_base_that_is_the_default_of_another_form(run, tmp_path):
    theirs = shutil.copytree(run, tmp_path / "run")
    config = yaml.safe_load((theirs / "config.yaml").read_text())
    config["model"] |= {"arch": "eurobert", "global_rope_theta": 160_000.0}
    (theirs / "config.yaml").write_text(yaml.safe_dump(config))
    sections = training_sections(RunFolder(theirs), STEPS[-1])
    (tmp_path / "config.yaml").write_text(sections.partition("```yaml\n")[2].partition("```")[0])
    assert load_config(tmp_path / "config.yaml").model == load_config(theirs / "config.yaml").model


def test_text_of_the_folder_is_plain_text_in_the_card(run, tmp_path):
    theirs = shutil.copytree(run, tmp_path / "run")
    hostile = "x<img src=//evil/a.png>![i](http://evil)[l](http://evil)`|\n# Heading\n```\n<script>"
    environment = json.loads((theirs / "environment.json").read_text())
    environment["data"][0] |= {"name": hostile, "fingerprint": hostile}
    environment["python"] = environment["hosts"][0]["processor"] = environment["packages"]["torch"] = hostile
    (theirs / "environment.json").write_text(json.dumps(environment))
    config = yaml.safe_load((theirs / "config.yaml").read_text())
    config["data"]["valid"] = "``` <b>"
    (theirs / "config.yaml").write_text(yaml.safe_dump(config))
    export = theirs / "exports" / BRANCHES[-1]
    (export / "maskwright_export.json").unlink()
    card = "---\nwidget: [{src: http://evil/a.png}]\n---\n# T\n\n~~~\n```\n~~~\n<img src=//evil>\n![i][r]\n"
    card += "# Evaluation\n## Evaluation\n> - ## Evaluation\nEvaluation\n---\n> Evaluation\n> ===\r## Evaluation\n"
    (export / "README.md").write_text(card)
    sections = training_sections(RunFolder(theirs), STEPS[-1])
    assert revision_of(export, "main", NAME, []).files["README.md"].count(b"evil") == 1
    page = published_card(card, NAME, [], sections)
    code = page.partition("````yaml\n")[2].partition("\n````\n")[0]
    text = page.replace(code, "")
    assert "``` <b>" in code
    assert re.findall(r"(?<!\\)<|(?<!\\)!\[|(?<!\\)\]\(|widget", text) == []
    tokens = MarkdownIt().parse(text.partition("---\n")[2].partition("---\n")[2])
    headings = [(token.tag, tokens[at + 1].content) for at, token in enumerate(tokens) if token.type == "heading_open"]
    assert [heading for heading in headings if heading[0] in ("h1", "h2")] == [
        ("h1", "tiny"),
        ("h2", "Training data"),
        ("h2", "Reproduce"),
    ]
    assert headings.count(("h3", "Evaluation")) == 1
    assert headings.count(("h4", "Evaluation")) == 3


def test_a_damaged_export_is_refused(run, tmp_path):
    export = shutil.copytree(run / "exports" / BRANCHES[0], tmp_path / "export")
    for name in ("config.json", "README.md", "tokenizer.json", "model.safetensors"):
        content = (export / name).read_bytes()
        for damaged, problem in (
            (content[:-1] + bytes([content[-1] ^ 1]), "differs from its SHA-256"),
            (None, "is miss"),
        ):
            (export / name).unlink() if damaged is None else (export / name).write_bytes(damaged)
            with pytest.raises(UserError, match=f"{export} is damaged: {name} {problem}"):
                revision_of(export, "main", NAME, [])
        (export / name).write_bytes(content)


@pytest.mark.parametrize("with_record", [True, False])
@pytest.mark.parametrize("name", ["README.md", "extra.json", "folder", "model.safetensors"])
def test_no_file_behind_a_link_is_published_or_merged(run, tmp_path, name, with_record):
    """The folders may be of somebody else, and a link can lead to any file of the user."""
    export = shutil.copytree(run / "exports" / BRANCHES[0], tmp_path / "export")
    private = tmp_path / "home" / name
    private.parent.mkdir()
    private.mkdir() if name == "folder" else private.write_text('{"password": 1}')
    (export / name).unlink(missing_ok=True)
    (export / name).symlink_to(private)
    if not with_record:
        (export / "maskwright_export.json").unlink()
    with pytest.raises(UserError, match=f"{name} cannot be read: it is a symbolic link"):
        revision_of(export, "main", NAME, [])
    with pytest.raises(UserError, match=f"{name} cannot be read: it is a symbolic link"):
        merge_models([run / "exports" / BRANCHES[1], export], [0.5, 0.5], "a merge", tmp_path / "out", print)
    assert not (tmp_path / "out").exists()


def test_no_export_behind_a_link_of_the_run_is_published(run, tmp_path):
    theirs = shutil.copytree(run, tmp_path / "run")
    (theirs / "exports").rename(tmp_path / "private")
    (theirs / "exports").symlink_to(tmp_path / "private")
    with pytest.raises(UserError, match="exports is a symbolic link"):
        revision_of(theirs / "exports" / BRANCHES[0], "main", NAME, [])
