"""`maskwright study sweep` before training: its dry run, and options that are checked early."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from launchers.commands.study_sweep import finetune_parameters
from tests.support.finetuning import tiny_tokenizer
from tests.support.in_process import app
from tests.support.study_runs import kept, run


def asked(config, *options: str):
    """The output of `study sweep` for a study of two arms at 9 steps."""
    words = ["--over", "masking.strategy=token,span", "train.steps=9", "--dry-run", *options]
    return CliRunner().invoke(app, ["study", "sweep", str(config), *words])


def test_a_dry_run_tells_arms_and_steps_writes_nothing_and_refuses_what_the_study_would(config, tmp_path):
    output = asked(config, "--seeds", "1").output
    assert "  strategy=token  9 steps\n  strategy=span   9 steps\n2 runs" in output
    assert not (tmp_path / "study").exists()
    run(kept(config, "train.steps=9", seeds=2))
    assert "6 runs, 4 of them done" in asked(config, "--seeds", "3").output
    assert "holds a study of 2 seeds" in str(asked(config, "--seeds", "1").exception)
    assert "holds another study" in str(asked(config, "masking.rate=0.3").exception)
    assert "run.seed: a study numbers its seeds" in str(asked(config, "run.seed=5").exception)
    assert asked(config, "--stop-early").exit_code == 0, "early stopping may begin or end at any time"


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
    begin = ["study", "sweep", str(config), "--over", "masking.strategy=token", "--dry-run"]
    result = CliRunner().invoke(app, [*begin, *options])
    assert result.exception is None if words is None else words in str(result.exception)
