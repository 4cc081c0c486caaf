"""A study without the training: its arms and runs, what is done again and what is not, and what is said of it."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from data_prep.errors import UserError
from launchers.app import app
from launchers.commands.study import parse_options
from launchers.study.arms import grid
from launchers.study.child import overrides, train_words
from launchers.study.commands import Stopped
from launchers.study.curves import curve_of
from launchers.study.define import define
from launchers.study.definition import children, keep_study, open_study
from launchers.study.dry_run import describe
from launchers.study.report import write_study_report
from launchers.study.results import METRICS, compare_arms, evaluated
from launchers.study.run import needs_timing, run_study
from launchers.study.slurm import plan, render
from launchers.study.timing import measure, read_timing, steps_in_time
from launchers.study.words import conclusion, difference_cell
from pretrain.config import Config, MaskingConfig, load_config
from tests.datasets import make_dataset
from tests.support.finetuning import tiny_tokenizer
from tests.support.forked import ROOT
from tests.support.runs import wait_for
from tests.support.study_runs import Pretended, settings

USUAL = MaskingConfig()


def names(*axes, masking=USUAL):
    return [arm.name for arm in grid(*axes, masking)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("train", "valid"):
        make_dataset(folder / name, [[5, 6, 7, 8, 9] * 4] * 40)
    return folder


@pytest.fixture(scope="module")
def tokenizer(data) -> None:
    """A tokenizer in the training data; with it come torch and transformers, which no other test here needs."""
    from tests.support.finetuning import tiny_tokenizer

    tiny_tokenizer(data / "train/tokenizer")


@pytest.fixture
def config(data, tmp_path) -> Path:
    values = {
        "run": {"dir": str(tmp_path / "study")},
        "data": {"train": str(data / "train"), "valid": str(data / "valid"), "seq_len": 32},
        "model": {"size": {"layers": 1, "hidden": 32, "heads": 2}},
        "train": {"steps": 40, "global_batch_size": 8},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def study_of(config: Path, *changes: str, arms=(["token", "span"], ["0.15"], ["80/10/10"]), **options):
    given = {"baseline": None, "seeds": 2, "budget": "tokens", "processes": 1}
    given |= {"pairs": None, "pairs_limit": None, "finetune": [], **options}
    return define(load_config(config, list(changes)), *map(list, arms), **given)


def kept(config: Path, *changes: str, **options):
    """(folder, study) of a study that is written."""
    loaded = load_config(config, list(changes))
    study = study_of(config, *changes, **options)
    keep_study(loaded.run.dir, study, loaded)
    return loaded.run.dir, open_study(loaded.run.dir)


def run(folder, study, commands=None, only=None):
    """(failures, lines, the commands that ran)."""
    commands = commands or Pretended()
    said: list[str] = []
    before = len(commands.called)
    failed = run_study(folder, study, commands, said.append, only=only)
    return failed, said, commands.commands()[before:]


def test_the_grid_names_each_arm():
    found = names(["token", "whole_word"], ["0.15", "0.3:0.15"], ["80/10/10", "100/0/0"])
    assert found == [
        "token-0.15",
        "token-0.15-100-0-0",
        "token-0.3to0.15",
        "token-0.3to0.15-100-0-0",
        "whole_word-0.15",
        "whole_word-0.15-100-0-0",
        "whole_word-0.3to0.15",
        "whole_word-0.3to0.15-100-0-0",
    ]


def test_an_arm_is_a_whole_masking_section():
    own = MaskingConfig.model_validate({"strategy": "span", "span": {"p": 0.5}, "replacement": {"per": "token"}})
    span, ngram = grid(["span", "ngram"], ["0.3:0.15"], ["60/30/10"], own)
    assert span.masking["rate"] == {"schedule": "linear", "start": 0.3, "end": 0.15}
    assert span.masking["replacement"] == {"mask": 0.6, "random": 0.3, "per": "token"}
    assert span.masking["span"]["p"] == 0.5
    assert ngram.masking["span"] == MaskingConfig().span.model_dump()  # as it would be refused
    assert MaskingConfig.model_validate(ngram.masking).strategy == "ngram"


@pytest.mark.parametrize(
    "axes,words",
    [
        ((["tokens"], ["0.15"], ["80/10/10"]), "--strategies 'tokens': the strategies are token, whole_word"),
        ((["token"], ["1.5"], ["80/10/10"]), "--rates '1.5': a rate is a number between 0 and 1"),
        ((["token"], ["0.3:0.2:0.1"], ["80/10/10"]), "--rates '0.3:0.2:0.1'"),
        ((["token"], ["x"], ["80/10/10"]), "--rates 'x'"),
        ((["token"], ["0.15"], ["80/10/20"]), "three whole percentages that add up to 100"),
        ((["token"], ["0.15"], ["80/10"]), "--replacements '80/10'"),
        ((["token", "token"], ["0.15"], ["80/10/10"]), "--strategies token token: give each once"),
        ((["token"], ["0.15", "0.150"], ["80/10/10"]), "two arms of the study are the same"),
        ((["collocation"], ["0.15"], ["80/10/10"]), "collocation at rate 0.15, 80/10/10: strategy collocation needs"),
    ],
)
def test_what_is_no_arm_is_refused(axes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        grid(*axes, USUAL)


@pytest.mark.parametrize(
    "changes,options,words",
    [
        (["objective=clm"], {}, "a masking study needs objective mlm, not clm"),
        (["data.valid=null"], {}, "data.valid is not set"),
        (["checkpoint.remote=s3://b/r"], {}, "checkpoint.remote is the place of one run alone"),
        (["cluster.nodes=2"], {}, "each run of a study trains on one node"),
        (["train.batch_ramp={start: 4, increment: 4, rows: 16}"], {"budget": "both"}, "choose --budget tokens"),
        ([], {"baseline": "span-0.3"}, "--baseline span-0.3 is none of the arms, which are token-0.15, span-0.15"),
        ([], {"pairs_limit": 3}, "--pairs-limit says how many of --pairs are taken"),
        ([], {"pairs": "/nowhere.jsonl"}, "--pairs /nowhere.jsonl: cannot be read"),
        (["data.train=/nowhere"], {}, "/nowhere"),
    ],
)
def test_a_study_that_could_not_be_one_is_refused(config, changes, options, words):
    with pytest.raises(UserError, match=re.escape(words)):
        study_of(config, *changes, **options)


def test_runs_go_seed_by_seed_and_more_seeds_come_last(config):
    two, three = (children(study_of(config, budget="both", seeds=n)) for n in (2, 3))
    assert [child.name for child in two] == [
        "token-0.15, seed 1",
        "span-0.15, seed 1",
        "span-0.15, seed 1, equal time",
        "token-0.15, seed 2",
        "span-0.15, seed 2",
        "span-0.15, seed 2, equal time",
    ]
    assert three[:6] == two
    assert [child.name for child in children(study_of(config, budget="time", seeds=1))] == [
        "token-0.15, seed 1, equal time",
        "span-0.15, seed 1, equal time",
    ]


def test_steps_that_take_as_long():
    seconds = {"a": 1.0, "b": 0.8, "c": 1.5, "d": 500.0}
    assert steps_in_time(seconds, "a", 100) == {"a": 100, "b": 125, "c": 67, "d": 1}


def test_a_training_is_told_all_that_its_arm_changes(config, tmp_path):
    folder, study = kept(config, arms=(["span"], ["0.3:0.15"], ["100/0/0"]))
    words = train_words(folder, study, children(study)[1], 25)
    loaded = load_config(Path(words[1]), [word for word in words[2:] if "=" in word])
    assert loaded.run.dir == folder / "runs/tokens/span-0.3to0.15-100-0-0/seed-2"
    assert (loaded.run.seed, loaded.train.steps, loaded.eval.masks) == (2, 25, "common")
    assert loaded.track.parent == "study"
    assert (
        loaded.masking
        == Config.model_validate(yaml.safe_load(config.read_text()) | {"masking": study.arms[0].masking}).masking
    )
    assert loaded.masking.rate.start == 0.3
    assert overrides({"run.dir": "it's: a #place"}) == ["run.dir='it''s: a #place'"]


def test_a_study_goes_through_all_its_runs_and_then_has_nothing_to_do(config, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("{}")
    finetune = ["--task", "classification", "--train", str(pairs), f"--valid={pairs}", "--epochs", "1"]
    folder, study = kept(config, pairs=str(pairs), pairs_limit=7, finetune=finetune, seeds=1)
    failed, said, did = run(folder, study, commands := Pretended())
    assert failed == []
    assert did == [
        f"{command} {arm}/seed-1"
        for arm in ("token-0.15", "span-0.15")
        for command in ("train", "export", "evaluate", "finetune")
    ]
    assert said[-2] == "run 2 of 2: span-0.15, seed 1, 40 steps"
    evaluate = commands.called[2]
    assert evaluate[2:8] == ["--data", study.data, "--pairs", str(pairs), "--limit", "7"]
    assert run(folder, study, commands) == ([], ["2 of 2 runs are done already"], [])
    assert study.primary == "downstream"
    assert set(study.contents) == {"data.train", "data.valid", "--pairs", "--finetune --train", "--finetune --valid"}


def test_results_that_were_altered_or_lost_are_made_again(config, tmp_path):
    task = tmp_path / "task.tsv"
    task.write_text("text\tlabel\na\t0\nb\t1\n")
    finetune = ["--task", "classification", "--train", str(task), "--valid", str(task)]
    folder, study = kept(config, seeds=1, finetune=finetune)
    run(folder, study)
    first, second = (child.run(folder) for child in children(study))
    (first / "evaluate.json").write_text('{"models": {}, "cut')
    (second / "study.json").unlink()
    assert run(folder, study)[2] == [
        f"{word}/seed-1" for word in ("evaluate token-0.15", "finetune token-0.15", "finetune span-0.15")
    ]
    true = (second / "evaluate.json").read_text()
    (second / "evaluate.json").write_text(re.sub(r'"loss": [\d.]+', '"loss": 1.0', true))
    (first / "finetune.json").write_text("{}")

    def find_no_altered_file(words):
        return words[0] == "finetune" and Path(words[-1]).exists() and "mean" not in Path(words[-1]).read_text()

    commands = Pretended()
    commands.fails = find_no_altered_file
    assert run(folder, study, commands)[0] == []
    assert "evaluate span-0.15/seed-1" in commands.commands()
    assert "evaluate token-0.15/seed-1" not in commands.commands()
    assert (second / "evaluate.json").read_text() == true
    assert run(folder, study)[2] == []


def test_a_run_of_another_study_is_not_taken_for_ones_own(config):
    folder, study = kept(config, seeds=1)
    run(folder, study)
    place = children(study)[0].run(folder) / "study.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"settings": "of another"}))
    failed, _, did = run(folder, study)
    assert did == []
    assert "holds a run of another study, or of other steps; remove it" in failed[0]


def test_a_stopped_training_is_gone_on_with(config):
    folder, study = kept(config, seeds=1)
    commands = Pretended()
    commands.stop_after = 17
    with pytest.raises(Stopped):
        run(folder, study, commands)
    _, _, did = run(folder, study, commands)
    assert did[:2] == ["train token-0.15/seed-1", "export token-0.15/seed-1"]
    assert settings(commands.called[1])["run.resume"] == "auto"


def test_a_run_that_fails_keeps_no_other_from_its_turn(config):
    folder, study = kept(config, seeds=2)
    commands = Pretended()
    commands.fails = lambda words: words[0] == "train" and "span" in str(settings(words)["masking"]["strategy"])
    failed, _, did = run(folder, study, commands)
    assert len(failed) == 2
    assert (
        "span-0.15, seed 1: `maskwright train` ended with exit code 1: first line / error: it went wrong" in failed[0]
    )
    assert did.count("evaluate token-0.15/seed-2") == 1
    write_study_report(folder, study)
    text = (folder / "report.md").read_text()
    assert "2 of 4 runs are not done, and are left out: span-0.15, seed 1, span-0.15, seed 2." in text
    assert "nothing can be compared" in text


def test_only_some_runs(config):
    folder, study = kept(config, budget="both", seeds=1)
    assert run(folder, study, only=[2])[2] == [f"{word} span-0.15/seed-1" for word in ("train", "export", "evaluate")]
    with pytest.raises(UserError, match=r"run 3 is one of equal time.*`maskwright study time"):
        run(folder, study, only=[3])
    with pytest.raises(UserError, match="has the runs 1 to 3, and no run 4"):
        run(folder, study, only=[4])


def test_equal_time_is_measured_first_and_each_arm_has_its_own_steps(config):
    folder, study = kept(config, budget="both", seeds=1)
    commands = Pretended()
    run(folder, study, commands)
    timing, rest = commands.called[:4], commands.called[4:]
    assert [settings(words)["masking"]["strategy"] for words in timing] == ["token", "span", "span", "token"]
    assert all(settings(words)["track.uri"] == "none" for words in timing)
    steps = [settings(words)["train.steps"] for words in rest if words[0] == "train"]
    assert steps == [40, 40, 50]  # a step of span takes 0.8 of token's time
    assert not list((folder / "timing").glob("*/"))
    assert run(folder, study, commands)[2] == []
    write_study_report(folder, study)
    found = json.loads((folder / "report.json").read_text())
    assert found["budgets"]["time"]["values"]["steps"] == {"token-0.15": {"1": 40}, "span-0.15": {"1": 50}}
    seconds = found["budgets"]["time"]["values"]["seconds"]
    assert seconds["token-0.15"]["1"] == pytest.approx(seconds["span-0.15"]["1"]) == pytest.approx(40)
    assert found["budgets"]["tokens"]["values"]["seconds"]["span-0.15"] == {"1": pytest.approx(32)}


def test_times_that_are_measured_are_not_measured_again_after_a_stop(config):
    folder, study = kept(config, budget="time", seeds=1)
    commands = Pretended()
    commands.fails = lambda words: len(commands.called) == 3
    with pytest.raises(UserError, match=r"the training that measures the time of span-0\.15 ended with exit code 1"):
        measure(folder, study, commands, lambda line: None)
    assert needs_timing(folder, study)
    assert read_timing(folder, study) is None
    write_study_report(folder, study)
    said: list[str] = []
    measure(folder, study, commands, said.append)
    assert said == [f"measuring the time of {arm}-0.15, round 2 of 2" for arm in ("span", "token")]
    assert read_timing(folder, study) == {"token-0.15": 1.0, "span-0.15": 0.8}
    assert not needs_timing(folder, study)


def test_another_study_in_the_folder_is_refused_and_more_seeds_are_not(config, tmp_path):
    kept(config, seeds=2)
    for changes, options, words in (
        (["optim.lr=1e-3"], {}, "optim.lr was 0.0005 and is 0.001"),
        (["train.steps=41"], {}, "train.steps was 40 and is 41"),
        ([], {"budget": "both"}, "budget was tokens and is both"),
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
    folder, study = kept(config, "track.experiment=other", seeds=3)
    assert study.seeds == 3
    assert load_config(folder / "config.yaml").track.experiment == "other"


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
    folder, _ = kept(config, pairs=str(pairs))
    pairs.write_text("two")
    with pytest.raises(UserError, match=r"holds another study: contents\.--pairs was"):
        kept(config, pairs=str(pairs))
    for words in (["run"], ["run", "--only", "2"], ["time"]):
        assert "is not what it was when it was begun: contents.--pairs was" in str(go_on(folder, *words))
    assert not (folder / "runs").exists()
    pairs.write_text("one")
    assert go_on(folder, "time") is None


def test_a_config_that_was_altered_since_is_not_gone_on_with(config, data, tmp_path):
    folder, _ = kept(config)
    own, true = folder / "config.yaml", (folder / "config.yaml").read_text()
    for part, other, words in (
        ("lr: 0.0005", "lr: 0.1", r"optim.lr was 0.0005 and is 0.1; put that back"),
        (str(data / "valid"), str(data / "train"), r"data.valid was \S+valid and is \S+train; put"),
        (str(data / "train"), str(data / "gone"), "gone"),
    ):
        assert part in true
        own.write_text(true.replace(part, other))
        assert re.search(words, str(go_on(folder, "run")))
    own.write_text(true.replace("experiment: maskwright", "experiment: other"))
    assert own.read_text() != true
    assert go_on(folder, "time") is None
    assert not (folder / "runs").exists()


def test_a_study_of_a_version_with_fewer_settings_is_gone_on_with(config):
    folder, study = kept(config)
    values = json.loads((folder / "study.json").read_text())
    del values["config"]["train"]["z_loss"], values["arms"][0]["masking"]["static_epochs"]
    (folder / "study.json").write_text(json.dumps(values))
    earlier = open_study(folder)
    assert go_on(folder, "time") is None
    _, later = kept(config, seeds=3)
    assert later.digest == earlier.digest != study.digest
    with pytest.raises(UserError, match=r"train.z_loss was 0.0 and is 0.1"):
        kept(config, "train.z_loss=0.1", seeds=3)


def test_a_run_folder_is_no_study(config, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study/status.json").write_text("{}")
    with pytest.raises(UserError, match="is the folder of a run"):
        kept(config)
    with pytest.raises(UserError, match=r"not a study \(it has no study.json\)"):
        open_study(tmp_path / "study")


def test_a_dry_run_tells_arms_tokens_and_time(config, tmp_path):
    study = study_of(config, budget="both", seeds=2)
    folder = tmp_path / "study"
    lines = describe(folder, study, load_config(config))
    assert lines[1:] == [
        "  token-0.15  40 steps  equal time: steps not known yet",
        "  span-0.15   40 steps  equal time: steps not known yet",
        "6 runs; 61,440 slots of tokens to train on, padding included",
        "time: measured first, in 2 rounds of 40 steps of each arm",
    ]
    folder, study = kept(config, budget="both", seeds=1)
    run(folder, study)
    folder, study = kept(config, budget="both", seeds=2)
    lines = describe(folder, study, load_config(config))
    assert lines[2] == "  span-0.15   40 steps  50 steps at equal time  0.800 s a step"
    assert lines[3] == "6 runs, 3 of them done; 33,280 slots of tokens to train on, padding included"
    assert lines[4] == "about 0:01:52 of training, evaluations left out"


def test_the_report_says_no_more_than_the_intervals(config):
    arms = (["token", "span", "whole_word"], ["0.15"], ["80/10/10"])
    folder, study = kept(config, arms=arms, seeds=4)
    run(folder, study, Pretended({"token-0.15": 4.0, "span-0.15": 4.0, "whole_word-0.15": 5.0}))
    page = write_study_report(folder, study)
    found = json.loads((folder / "report.json").read_text())["budgets"]["tokens"]
    said = " ".join(found["conclusions"]["held_out"])
    best, other = ("token-0.15", "span-0.15") if "By held-out loss, token" in said else ("span-0.15", "token-0.15")
    assert f"{best} is recommended over some arms, but not over {other} (4 seeds)." in said
    assert f"{best} is better than whole_word-0.15 (-1.0" in said
    assert f"cannot be told apart with 4 seeds from {other}" in said
    metric = found["metrics"]["held_out"]
    assert metric["from_baseline"]["whole_word-0.15"]["told_apart"]
    low, high = metric["from_baseline"]["span-0.15"]["interval"]
    assert low < 0 < high
    assert metric["means"]["token-0.15"]["n"] == 4
    text = page.read_text()
    assert "Equal tokens" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert {"loss-tokens.png", "differences-tokens.png", "report.md"} <= {path.name for path in folder.iterdir()}


def compared(higher: bool, **values):
    metric = next(one for one in METRICS if one.better == ("higher" if higher else "lower"))
    by_seed = {arm: dict(enumerate(numbers, 1)) for arm, numbers in values.items()}
    return compare_arms(metric, by_seed, "a")


def test_conclusions_in_words():
    assert conclusion(compared(False, a=[3.0], b=[4.0]), 2) == [
        "With one seed, how much chance decides is not known: by held-out loss no arm can be recommended. a has the "
        "lowest one."
    ]
    clear = conclusion(compared(False, a=[3.0, 3.1, 3.0], b=[4.0, 4.1, 4.01]), 3)
    assert clear[0] == "a is recommended by held-out loss (3 seeds)."
    assert re.fullmatch(r"a is better than b \(-1\.0033 \[-1\.0\d+, -0\.9\d+\] nats\)\.", clear[1])
    assert clear[2] == "1 of 3 arms have no result and are left out."
    unclear = " ".join(conclusion(compared(True, a=[0.31, 0.35, 0.30], b=[0.32, 0.31, 0.31]), 2))
    assert unclear.startswith(
        "By masked accuracy no arm can be recommended (3 seeds). a, of the highest mean, cannot be"
    )
    assert "a is better" not in unclear
    assert re.search(r"it would take roughly [\d,]+ seeds for b to do so with a chance of 80%", unclear)
    assert difference_cell(compared(True, a=[0.3, 0.3], b=[0.31, 0.33]).from_baseline["b"], "share").startswith(
        "+2.00 ["
    )


def test_an_arm_without_all_seeds_is_named():
    found = conclusion(compared(False, a=[3.0, 3.1, 3.0], b=[4.0, 4.1, 4.01], c=[2.0]), 4)
    assert found[0] == "a is recommended by held-out loss (3 seeds)."
    assert found[2:] == [
        "1 of 4 arms have no result and are left out.",
        "c lacks results of the 3 seeds by which the others are compared, and is left out.",
    ]
    metric = next(one for one in METRICS if one.better)
    (nothing,) = conclusion(compare_arms(metric, {"a": {1: 3.0}, "b": {2: 3.1}}, "a"), 2)
    assert nothing == "No two arms have a result of the same seed: by held-out loss nothing can be compared."


def test_no_curve_without_an_evaluation():
    assert curve_of("a", []) is None


def test_an_evaluation_that_lacks_parts():
    assert evaluated({"models": {"m": {"held_out": {"loss": 3.0, "masked_accuracy": None}}}}) == {
        "held_out": 3.0,
        "masked_accuracy": None,
        "pairs": None,
    }
    assert set(evaluated({}).values()) == {None}


def test_options_for_another_command_are_checked_before_anything_is_trained():
    assert parse_options("export", ["--step", "3"])["step"] == 3
    with pytest.raises(Exception, match="No such option: --stp"):
        parse_options("export", ["--stp", "3"])
    with pytest.raises(UserError, match="--export: --out is set by the study; leave it out"):
        parse_options("export", ["--out=there"])


@pytest.mark.parametrize(
    "options,words",
    [
        (["--pairs", "rows"], "rows, line 1 is not JSON"),
        (["--pairs", "pairs"], None),
        (["--finetune", "--task classification --train rows --valid rows"], None),
        (["--finetune", "--task classification --train rows --valid pairs"], "there is no column"),
        (["--finetune", "--task classification --train rows --valid rows --columns text"], "--columns text: write"),
        (
            ["--finetune", "--task classification --train rows --valid rows --metric f"],
            "--metric f: classification has",
        ),
        (["--finetune", "--task questions --train rows --valid rows"], "rows, line 1: this is not JSON"),
        (
            ["--finetune", "--task classification --train rows --valid rows --lr 0"],
            "--lr 0: a learning rate is above 0",
        ),
        (["--finetune", "--task classification --train rows --valid rows --lr inf"], "--lr inf: a learning rate is"),
    ],
)
def test_what_models_are_evaluated_on_is_read_before_anything_is_trained(config, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    tiny_tokenizer(Path(yaml.safe_load(config.read_text())["data"]["train"]) / "tokenizer")
    Path("rows").write_text("text\tlabel\nthe old ship\tgood\nthe new ship\tbad\n")
    Path("pairs").write_text('{"sentence_good": "the ship is red", "sentence_bad": "ship the is red"}\n')
    begin = ["study", "masking", str(config), "--strategies", "token", "--rates", "0.15", "--dry-run"]
    result = CliRunner().invoke(app, [*begin, *options])
    assert result.exception is None if words is None else words in str(result.exception)


def test_the_command_line_tells_a_dry_run_and_writes_nothing(config, tmp_path):
    words = [
        "study",
        "masking",
        str(config),
        "--strategies",
        "token,span",
        "--rates",
        "0.15",
        "--seeds",
        "1",
        "--steps",
        "9",
    ]
    result = CliRunner().invoke(app, [*words, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "2 runs; 4,608 slots" in result.output
    assert not (tmp_path / "study").exists()


STOPPED_STUDY = """
import sys
from pathlib import Path
from launchers.study.commands import Commands, Stopped
said = Path(sys.argv[1])
with Commands(["bash", "-c"]) as run:
    assert run(["echo begun; exit 3"], said) == 3
    try:
        run(["trap 'echo saved; kill $!; exit 75' TERM; echo waits; sleep 60 & wait $!"], said)
    except Stopped:
        try:
            run(["echo never"], said)
        except Stopped:
            sys.exit(75)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_request_to_stop_is_handed_on_once_and_nothing_is_begun_after_it(tmp_path, number):
    said = tmp_path / "logs/said"
    study = subprocess.Popen([sys.executable, "-c", STOPPED_STUDY, str(said)], cwd=ROOT)
    wait_for(lambda: said.exists() and "waits" in said.read_text())
    for _ in range(3):
        study.send_signal(number)
    assert study.wait(30) == 75
    assert said.read_text() == "begun\nwaits\nsaved\n"


def test_jobs_wait_for_one_another():
    assert plan([2, 3], timing=True) == [
        ("time", []),
        ("run", ["--array=2,3", "--dependency=afterok:{before}", "--kill-on-invalid-dep=yes"]),
        ("report", ["--dependency=afterany:{before}"]),
    ]
    assert plan([1], timing=False) == [("run", ["--array=1"]), ("report", ["--dependency=afterany:{before}"])]
    assert plan([], timing=False) == [("report", [])]


def test_a_job_script_asks_for_what_the_cluster_section_says(config):
    cluster = ["cluster.partition=gpu", "cluster.gpus_per_node=2", "cluster.time=2:00:00", "cluster.modules=[cuda]"]
    folder, study = kept(config, *cluster, "cluster.options=[--mail-type=END]", processes=2)
    loaded = load_config(folder / "config.yaml")
    script = render(folder, study, loaded, "run")
    for line in (
        '#SBATCH --job-name="study-run"',
        '#SBATCH --gres="gpu:2"',
        '#SBATCH --cpus-per-task="8"',
        '#SBATCH --partition="gpu"',
        '#SBATCH --signal="B:USR1@120"',
        "#SBATCH --requeue",
        '#SBATCH --mail-type="END"',
        "module load cuda",
    ):
        assert line in script.splitlines(), line
    assert script.endswith(f' -m launchers.cli study run {folder} --only "$SLURM_ARRAY_TASK_ID"\n')
    assert "gres" not in render(folder, study, loaded, "report")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
