"""Preflight checks of a model: every command that starts a run refuses an unusable one before it waits in a queue."""

import shutil
from pathlib import Path

import pytest
from transformers import BertConfig, BertForMaskedLM
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from launchers.doctor import examine_machine
from pretrain.config_files import load_config
from pretrain.planning import check_start
from pretrain.run import RunFolder, step_name
from tests.support.in_process import app
from tests.support.runs import succeed, tiny_config, write_config
from tests.support.study_runs import kept, study_config, study_data
from tests.support.text_data import text_data


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return study_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config(data, tmp_path) -> Path:
    return study_config(tmp_path, data)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A model of the size that the config says."""
    folder = tmp_path_factory.mktemp("bert")
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    BertForMaskedLM(BertConfig(vocab_size=1000, max_position_embeddings=32, **size)).save_pretrained(folder)
    return folder


def refusal(config: Path, *changes: str) -> str | None:
    try:
        check_start(load_config(config, list(changes)), 1)
    except UserError as error:
        return str(error)
    return None


def test_weights_to_begin_with_are_looked_at_without_reading_them(config, weights, tmp_path):
    assert refusal(config, f"model.init={weights}") is None
    assert refusal(config, f"model.init={tmp_path / 'none'}").endswith("save_pretrained wrote.")
    assert "For a model of the Hub, write hub:a/typo." in refusal(config, "model.init=a/typo")
    assert "its num_hidden_layers is 1 and model.size.layers is 2" in refusal(
        config, f"model.init={weights}", "model.size={layers: 2, hidden: 32, heads: 2}"
    )
    shutil.copy(weights / "config.json", tmp_path)
    assert "has no model.safetensors" in refusal(config, f"model.init={tmp_path}")
    (tmp_path / "model.safetensors").write_text("not looked into")
    assert refusal(config, f"model.init={tmp_path}") is None
    missing = tmp_path / "none"
    assert str(missing) in refusal(config, f"model={{arch: auto, config: {missing}}}")


@pytest.mark.parametrize("run", [".", "seed-2"])
def test_a_run_that_has_begun_needs_its_weights_no_more(config, tmp_path, run):
    gone = f"model.init={tmp_path / 'none'}"
    folder = RunFolder(load_config(config).run.dir / run)
    folder.create()
    assert "is no folder" in refusal(config, gone)
    (folder.checkpoints / step_name(3)).mkdir()
    assert refusal(config, gone) is None


def test_weights_are_not_asked_for_where_the_run_goes_on_from_elsewhere(config, tmp_path):
    gone = f"model.init={tmp_path / 'none'}"
    assert "is no folder" in refusal(config, gone, "run.resume=never")
    for change in ("run.resume=required", f"run.resume={tmp_path}", "checkpoint.remote=s3://b/run"):
        assert refusal(config, gone, change) is None


def test_a_named_checkpoint_exists_where_the_run_has_none_of_its_own(config, tmp_path):
    missing = f"run.resume={tmp_path}/other/checkpoints/step-00000003"
    assert "step-00000003. Name RUN/checkpoints/step-N, or write auto." in refusal(config, missing)
    (RunFolder(load_config(config).run.dir).checkpoints / step_name(3)).mkdir(parents=True)
    assert refusal(config, missing) is None


@pytest.mark.parametrize(
    "changes, warning",
    [
        (["schedule.warmup_steps=1000"], "schedule.warmup_steps (1,000) leaves none of the"),
        (["optim.lr=50"], "optim.lr is 50, at which training usually diverges"),
        (["masking.replacement={mask: 0, random: 0}"], "the model learns to copy its input"),
        (["checkpoint.at_steps=[1, 500]"], "checkpoint.at_steps has 500, after the last step"),
        (["optim.ema=0.9999"], "of the averaged weights are the initial ones"),
        (
            ["phases=[{name: one, steps: 12}, {name: two, steps: 8, schedule: {warmup_steps: 8}}]"],
            "phases.two: schedule.warmup_steps (8) leaves none of the 8 steps",
        ),
    ],
)
def test_a_setting_that_silently_spoils_a_run_is_warned_about(config, changes, warning):
    (said,) = check_start(load_config(config, ["train.steps=20", "data.valid=null", *changes]), 1)
    assert warning in said
    assert len(said) <= 300


def test_held_out_data_that_are_training_data_are_warned_about(tmp_path):
    data = text_data(tmp_path)
    succeed(
        "prep", "run", "--input", tmp_path / "text.jsonl", "--tokenizer", tmp_path / "tok", "--out", tmp_path / "all"
    )
    both = [tmp_path / "text.jsonl", tmp_path / "more.txt"]
    both[1].write_text("some other text\n")
    inputs = [word for path in both for word in ("--input", path)]
    succeed("prep", "run", *inputs, "--tokenizer", tmp_path / "tok", "--out", tmp_path / "more")
    config = write_config(tmp_path / "run.yaml", tiny_config(data, tmp_path / "run", track__uri="none"))

    def warnings(train: str, valid: str) -> list[str]:
        return check_start(load_config(config, [f"data.train={tmp_path / train}", f"data.valid={tmp_path / valid}"]), 1)

    assert warnings("data/train", "data/valid") == []
    for train, valid in (("data/train", "data/train"), ("all", "more"), ("more", "all")):
        (said,) = warnings(train, valid)
        assert "holds documents of data.train" in said, (train, valid)
    findings = examine_machine(load_config(config, [f"data.valid={data / 'train'}"]))
    (said,) = (one.value for one in findings if one.group == "run" and one.status == "warn")
    assert said.startswith("data.valid (")


def test_every_command_that_starts_runs_refuses(config, tmp_path):
    gone = f"model.init={tmp_path / 'none'}"
    for words in (
        ["train", str(config), gone, "--procs", "1"],
        ["launch", "slurm", str(config), gone, "--cpu", "--dry-run"],
        ["study", "sweep", str(config), gone, "--over", "optim.lr=1", "--dry-run"],
    ):
        assert "model.init" in str(CliRunner().invoke(app, words).exception), words
    found = examine_machine(load_config(config, [gone]))
    findings = {one.name: one for one in found if one.group == "run"}
    assert {name for name, one in findings.items() if one.status == "fail"} == {"model"}
    assert "is no folder" in findings["model"].value
    assert not (tmp_path / "study").exists()


def test_a_study_is_of_the_weights_that_it_was_begun_with(config, weights, tmp_path):
    own = shutil.copytree(weights, tmp_path / "own")
    kept(config, f"model.init={own}")
    with (own / "model.safetensors").open("ab") as file:
        file.write(b" ")
    with pytest.raises(UserError, match=r"holds another study: contents\.model\.init was"):
        kept(config, f"model.init={own}")
