"""`maskwright study sweep` before training: its dry run, and options that are checked early."""

from pathlib import Path

import pytest
import yaml

from data_prep.common.errors import UserError
from launchers.commands.study_sweep import finetune_parameters
from tests.support.finetuning import tiny_tokenizer
from tests.support.in_process import invoke
from tests.support.study_runs import kept, run


def asked(config, *options: str):
    """The output of `study sweep` for a study of two arms at 9 steps."""
    words = ["--over", "masking.strategy=token,span", "train.steps=9", "--dry-run", *options]
    return invoke("study", "sweep", config, *words).output


def refusal(config, *options: str) -> str:
    with pytest.raises(UserError) as refused:
        asked(config, *options)
    return str(refused.value)


def test_a_dry_run_tells_arms_and_steps_writes_nothing_and_refuses_what_the_study_would(config, tmp_path):
    output = asked(config, "--seeds", "1")
    assert "  strategy=token  9 steps\n  strategy=span   9 steps\n2 runs" in output
    assert not (tmp_path / "study").exists()
    run(kept(config, "train.steps=9", seeds=2))
    assert "6 runs, 4 of them done" in asked(config, "--seeds", "3")
    assert "holds a study of 2 seeds" in refusal(config, "--seeds", "1")
    assert "holds another study" in refusal(config, "masking.rate=0.3")
    assert "run.seed: a study numbers its seeds" in refusal(config, "run.seed=5")
    asked(config, "--stop-early")  # may begin or end at any time


def test_options_of_a_fine_tuning_are_checked_before_anything_is_trained():
    options = ["--task", "classification", "--train", "a.tsv", "--valid", "b.tsv"]
    assert finetune_parameters([*options, "--limit", "3"])["limit"] == 3
    with pytest.raises(UserError, match=r"--finetune: No such option: --limt \(Possible options: .*--limit,"):
        finetune_parameters([*options, "--limt", "3"])
    with pytest.raises(UserError, match=r"--finetune: --out is set by the study\. Remove it from --finetune"):
        finetune_parameters([*options, "--out=there"])


TASK = "--task classification --train rows --valid rows"


@pytest.mark.parametrize(
    "options,words",
    [
        (["--pairs", "rows"], "rows, line 1 is not JSON"),
        (["--pairs", "pairs"], None),
        (["--pairs", "long"], "long: a sentence has 42 tokens, and the model takes 32"),
        (["--pairs", "long", "--pairs-limit", "1"], None),
        (["--finetune", TASK], None),
        (["--finetune", "--task classification --train rows --valid pairs"], "has no column"),
        (["--finetune", f"{TASK} 'a"], "cannot be split into options (No closing quotation)"),
        (["--finetune", f"{TASK} --columns text"], "--columns text is not TEXT,LABEL"),
        (["--finetune", f"{TASK} --lr 0"], "--lr must be more than 0 and finite, not 0."),
        (["--finetune", f"{TASK} --lr inf"], "--lr must be more than 0 and finite, not inf."),
        (["--finetune", f"{TASK} --dropout 1"], "--dropout must be 0 or more and less than 1, not 1."),
    ],
)
def test_what_models_are_evaluated_on_is_read_before_anything_is_trained(config, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    tiny_tokenizer(Path(yaml.safe_load(config.read_text())["data"]["train"]) / "tokenizer")
    Path("rows").write_text("text\tlabel\nthe old ship\tgood\nthe new ship\tbad\n")
    Path("pairs").write_text('{"sentence_good": "the ship is red", "sentence_bad": "ship the is red"}\n')
    long = f'{{"sentence_good": "the ship {"is red " * 19}", "sentence_bad": "ship", "UID": "a"}}\n'
    Path("long").write_text(Path("pairs").read_text().replace("}", ', "UID": "a"}') + long)
    assert words in refusal(config, *options) if words else asked(config, *options)
