"""Definition of a study: its runs, refused options, and permitted changes at a resume."""

import re

import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from evaluation.study import Study, open_unchanged
from evaluation.study.define_study import grid
from launchers.app import app
from pretrain.config import MaskingConfig
from pretrain.config_files import load_config
from tests.support.study_runs import kept, study_of


@pytest.mark.parametrize(
    "changes,options,words",
    [
        (["objective=clm"], {}, "a masking study needs objective mlm, not clm"),
        (["data.valid=null"], {}, "data.valid is not set"),
        (["checkpoint.remote=s3://b/r"], {}, "checkpoint.remote is the place of one run alone"),
        (["cluster.nodes=2"], {}, "each run of a study trains on one node"),
        ([], {"baseline": "span-0.3"}, "--baseline span-0.3 is not one of the arms, which are token-0.15, span-0.15"),
        ([], {"pairs_limit": 3}, "--pairs-limit says how many of --pairs are taken"),
        ([], {"pairs": "/nowhere.jsonl"}, "--pairs /nowhere.jsonl cannot be read"),
        (["data.train=/nowhere"], {}, "/nowhere"),
    ],
)
def test_a_study_that_could_not_be_one_is_refused(config, changes, options, words):
    with pytest.raises(UserError, match=re.escape(words)):
        study_of(config, *changes, **options)


def test_runs_go_seed_by_seed_and_more_seeds_come_last(config, tmp_path):
    two, three = (study_of(config, seeds=n) for n in (2, 3))
    names = ["token-0.15, seed 1", "span-0.15, seed 1", "token-0.15, seed 2", "span-0.15, seed 2"]
    assert [run.name for run in two.runs] == names
    assert three.runs[:4] == two.runs


def test_another_study_in_the_folder_is_refused_and_more_seeds_are_not(config, tmp_path):
    kept(config, seeds=2)
    for changes, options, words in (
        (["optim.lr=1e-3"], {}, "optim.lr was 0.0005 and is 0.001"),
        (["train.steps=41"], {}, "train.steps was 40 and is 41"),
        (
            [],
            {"arms": (["token"], ["0.15"], ["80/10/10"])},
            "arms was ['token-0.15', 'span-0.15'] and is ['token-0.15']",
        ),
        (["masking.replacement.per=token"], {}, "token-0.15.replacement.per was unit and is token (and 1 more)"),
        ([], {"seeds": 1}, "a study of 2 seeds; seeds can be added, not taken away"),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            kept(config, *changes, **options)
    study = kept(config, "track.experiment=other", seeds=3)
    assert study.seeds == 3
    assert load_config(study.folder / "config.yaml").track.experiment == "other"


def test_what_differs_is_said_without_secrets(config):
    kept(config, pairs="https://host/blimp.jsonl?signature=abc")
    with pytest.raises(UserError, match=r"pairs was https://host/blimp\.jsonl\?signature=\*\*\*") as caught:
        kept(config, pairs="https://host/blimp.jsonl?signature=abcd")
    assert "abc" not in str(caught.value)


def go_on(folder, *words):
    """The error of a command of `maskwright study` for the folder, or None."""
    return CliRunner().invoke(app, ["study", *words, str(folder)]).exception


def test_changed_data_are_another_study(config, data, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("one")
    folder = kept(config, pairs=str(pairs)).folder
    pairs.write_text("two")
    with pytest.raises(UserError, match=r"holds another study: contents\.--pairs was"):
        kept(config, pairs=str(pairs))
    for words in (["run"], ["run", "--only", "2"]):
        assert "has changed since the study started: contents.--pairs was" in str(go_on(folder, *words))
    assert not (folder / "runs").exists()
    pairs.write_text("one")
    assert open_unchanged(folder).pairs == str(pairs)


def test_a_config_that_was_altered_since_is_not_gone_on_with(config, data, tmp_path):
    folder = kept(config).folder
    own, true = folder / "config.yaml", (folder / "config.yaml").read_text()
    for part, other, words in (
        ("lr: 0.0005", "lr: 0.1", r"optim.lr was 0.0005 and is 0.1; restore it"),
        (str(data / "valid"), str(data / "train"), r"data.valid was \S+valid and is \S+train; restore"),
        (str(data / "train"), str(data / "gone"), "gone"),
    ):
        assert part in true
        own.write_text(true.replace(part, other))
        assert re.search(words, str(go_on(folder, "run")))
    own.write_text(true.replace("experiment: maskwright", "experiment: other"))
    assert own.read_text() != true
    assert open_unchanged(folder).baseline == "token-0.15"
    assert not (folder / "runs").exists()


def test_a_run_folder_is_no_study(config, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study/status.json").write_text("{}")
    with pytest.raises(UserError, match="is the folder of a run"):
        kept(config)
    with pytest.raises(UserError, match="is a run folder, not a study folder"):
        Study.open(tmp_path / "study")


def test_the_grid_names_each_arm():
    found = grid(["token", "whole_word"], ["0.15", "0.3:0.15"], ["80/10/10", "100/0/0"], MaskingConfig())
    ends = ("-0.15", "-0.15-100-0-0", "-0.3to0.15", "-0.3to0.15-100-0-0")
    assert [arm.name for arm in found] == [name + end for name in ("token", "whole_word") for end in ends]


def test_an_arm_is_a_whole_masking_section():
    own = MaskingConfig.model_validate({"strategy": "span", "span": {"p": 0.5}, "replacement": {"per": "token"}})
    span, whole_word = grid(["span", "whole_word"], ["0.3:0.15"], ["60/30/10"], own)
    assert span.masking["rate"] == {"schedule": "linear", "start": 0.3, "end": 0.15}
    assert span.masking["replacement"] == {"mask": 0.6, "random": 0.3, "per": "token"}
    assert span.masking["span"]["p"] == 0.5
    assert whole_word.masking["span"] == MaskingConfig().span.model_dump()  # as it would be refused
    assert MaskingConfig.model_validate(whole_word.masking).strategy == "whole_word"


@pytest.mark.parametrize(
    "axes,words",
    [
        ((["token"], ["1.5"], ["80/10/10"]), "--rates '1.5' is not a number between 0 and 1"),
        ((["token"], ["0.3:0.2:0.1"], ["80/10/10"]), "--rates '0.3:0.2:0.1'"),
        ((["token"], ["x"], ["80/10/10"]), "--rates 'x'"),
        ((["token"], ["0.15"], ["80/10/20"]), "three whole percentages that add up to 100"),
        ((["token", "token"], ["0.15"], ["80/10/10"]), "--strategies token token: give each once"),
        ((["token"], ["0.15", "0.150"], ["80/10/10"]), "two arms of the study are the same"),
    ],
)
def test_what_is_no_arm_is_refused(axes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        grid(*axes, MaskingConfig())
