"""Runs of a study, without training: finished runs, repeated runs, and the state after a stop."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.common.errors import UserError
from evaluation.study import Stopped, open_unchanged, run_study, write_study_report
from evaluation.study.study_results import read_results
from launchers.commands.study_run import study_commands
from pretrain.config_files import load_config
from tests.support.forked import ROOT
from tests.support.hub_server import Repository, Store, connect, serving_hub
from tests.support.runs import wait_for
from tests.support.study_runs import Pretended, kept, run, settings, study_config


def test_a_training_is_told_all_that_its_arm_changes(data, tmp_path):
    place = tmp_path / "it's: a #place"
    place.mkdir()
    falls = "masking={rate: {schedule: linear, start: 0.3, end: 0.15}, strategy: span}"
    study = kept(study_config(place, data), "train.steps=7", over=[falls, "optim.lr=1e-3,3e-3"])
    run(study, commands := Pretended(), only=[2])
    words = commands.called[0]
    loaded = load_config(Path(words[1]), [word for word in words[2:] if "=" in word])
    assert loaded.run.dir == study.folder / "runs/masking=linear-0.3-0.15-span,lr=0.003/seed-1"
    assert (loaded.run.seed, loaded.train.steps, loaded.optim.lr) == (1, 7, 3e-3)
    assert loaded.track.parent == "study"
    assert (loaded.masking.rate.start, loaded.masking.strategy) == (0.3, "span")


def test_a_study_goes_through_all_its_runs_and_then_has_nothing_to_do(config, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("{}")
    finetune = ["--task", "classification", "--train", str(pairs), f"--valid={pairs}", "--epochs", "1"]
    study = kept(config, pairs=str(pairs), pairs_limit=7, finetune=finetune, seeds=1)
    failed, said, did = run(study, commands := Pretended())
    assert failed == []
    words = ("train", "export", "evaluate", "finetune")
    assert did == [f"{word} strategy={arm}/seed-1" for arm in ("token", "span") for word in words]
    assert said[-2] == "run 2 of 2: strategy=span, seed 1, 40 steps"
    evaluate = commands.called[2]
    assert evaluate[2:8] == ["--data", study.data, "--pairs", str(pairs), "--limit", "7"]
    assert run(study, commands) == ([], ["2 of 2 runs are done already"], [])
    assert study.primary == "downstream"
    assert set(study.contents) == {"data.valid", "--pairs", "--finetune --train", "--finetune --valid"}


def test_the_runs_of_a_study_are_fine_tuned_on_one_commit(config, tmp_path, monkeypatch):
    """Also if it is continued after a new commit. A new study has the new one; other data are another study."""
    pq.write_table(pa.table({"text": ["the ship", "ship"], "label": [0, 1]}), rows := io.BytesIO())
    repository, name = Repository(private=False), "hub:someone/words"
    old = repository.commit("main", {"train.parquet": rows.getvalue()})
    task = ["--task", "classification", "--train", name, f"--valid={name}?split=train"]
    pinned = [f"{name}?split=train&revision={old}", f"--valid={name}?split=train&revision={old}"]
    with serving_hub(Store({}, {"someone/words": repository})) as hub:
        connect(monkeypatch, hub, tmp_path / "hf")
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        study = kept(config, finetune=task, seeds=1)
        assert [*study.finetune[3:]] == pinned
        new = repository.commit("main", {"train.parquet": rows.getvalue(), "README.md": b"new"})
        again = kept(config, finetune=task, seeds=2)
        assert (again.finetune, again.contents) == (study.finetune, study.contents)
        open_unchanged(study.folder)
        run(again, commands := Pretended(), only=[3])
        assert [*commands.called[-1][5:7]] == pinned
        other = kept(config, f"run.dir={tmp_path}/other", finetune=task)
        assert other.finetune[3] == f"{name}?split=train&revision={new}"
        for changed in (f"{name}?revision={new}", f"{name}?name=default"):
            with pytest.raises(UserError, match="holds another study"):
                kept(config, finetune=[*task[:3], changed, task[4]])


def test_what_was_done_elsewhere_meanwhile_is_not_done_again(config):
    study = kept(config, seeds=1)
    commands, said = Pretended(), []

    def say(line):
        said.append(line)
        if len(said) == 1:
            run(study, only=[2])

    assert run_study(study, commands, say) == []
    assert said[-1] == "run 2 of 2: strategy=span, seed 1: done meanwhile"
    assert commands.commands()
    assert "span" not in " ".join(commands.commands())


def test_results_that_were_damaged_or_lost_are_made_again(config, tmp_path):
    task = tmp_path / "task.tsv"
    task.write_text("text\tlabel\na\t0\nb\t1\n")
    finetune = ["--task", "classification", "--train", str(task), "--valid", str(task)]
    study = kept(config, seeds=1, finetune=finetune)
    run(study)
    first, second = (run.folder for run in study.runs)
    (first / "evaluate.json").write_text('{"models": {}, "cut')
    (first / "finetune.json").write_text("{}")
    (second / "study.json").unlink()
    commands = Pretended()
    commands.fails = lambda words: (first / "finetune.json").exists() and words[1].startswith(str(first))
    failed, _, did = run(study, commands)
    again = ("evaluate strategy=token", "finetune strategy=token", "finetune strategy=span")
    assert (failed, did) == ([], [f"{word}/seed-1" for word in again])
    assert run(study)[2] == []


def test_runs_of_another_study_are_not_taken_for_ones_own(config):
    study = kept(config, seeds=1)
    run(study)
    (study.folder / "study.json").unlink()
    with pytest.raises(UserError, match=r"has runs of a study without its study\.json; choose another run\.dir"):
        kept(config, "optim.lr=1e-3", seeds=1)


def test_a_run_that_was_asked_to_stop_is_told_from_a_study_that_was(config, monkeypatch):
    """A stopped study requeues its job. If a user stopped a run, its job is not requeued: it would continue the run."""
    study = kept(config, seeds=1)
    commands = Pretended()
    queued: list[str] = []
    monkeypatch.setattr("launchers.slurm.study_array.queue_again", lambda: queued.append("again"))
    for stop, wanted in (("stop_itself_after", []), ("stop_after", ["again"])):
        setattr(commands, stop, 17)
        with pytest.raises(Stopped) as stopped:
            run(study, commands)
        with pytest.raises(SystemExit, match="75"), study_commands(study.folder):
            raise stopped.value
        assert queued == wanted
    calls = len(commands.called)
    _, _, did = run(study, commands)
    assert did[:2] == ["train strategy=token/seed-1", "export strategy=token/seed-1"]
    assert settings(commands.called[calls])["run.resume"] == "auto"


def test_a_study_sends_nothing_to_mlflow_but_its_trainings(config):
    """Regardless of MLFLOW_TRACKING_URI."""
    study = kept(config, seeds=1, finetune=["--task", "classification"])
    commands = Pretended()
    run(study, commands)
    others = [words for words in commands.called if words[0] in ("evaluate", "finetune")]
    assert len(others) == 4
    assert all(words[words.index("--uri") + 1] == "none" for words in others)


def test_a_run_that_fails_keeps_no_other_from_its_turn(config):
    study = kept(config, seeds=2)
    commands = Pretended()
    commands.fails = lambda words: words[0] == "train" and settings(words)["masking.strategy"] == "span"
    failed, _, did = run(study, commands)
    assert len(failed) == 2
    said = "strategy=span, seed 1: `maskwright train` ended with exit code 1: first line / error: it went wrong"
    assert said in failed[0]
    assert did.count("evaluate strategy=token/seed-2") == 1
    write_study_report(study)
    text = (study.folder / "report.md").read_text()
    assert "2 of 4 runs are not done, and are left out: strategy=span, seed 1, strategy=span, seed 2." in text
    assert "cannot be compared" in text


def test_arms_that_are_worse_get_no_more_seeds(config):
    """The sequential test needs two seeds; a failed arm gets no more seeds until its run succeeds."""
    study = kept(config, over=["optim.lr=1,2,3,4"], seeds=4, stop_early=True)
    commands = Pretended({"lr=1": 4.0, "lr=2": 4.02, "lr=3": 9.0, "lr=4": 4.01})
    commands.fails = lambda words: words[0] == "train" and settings(words)["optim.lr"] == 4
    failed, said, did = run(study, commands)
    assert [error.partition(":")[0] for error in failed] == ["lr=4, seed 1"]
    assert [did.count(f"train lr={lr}/seed-{seed}") for lr in (1, 2) for seed in (1, 2, 3, 4)] == [1] * 8
    assert [f"train lr=3/seed-{seed}" in did for seed in (1, 2, 3, 4)] == [True, True, False, False]
    assert said.count("run 11 of 16: lr=3, seed 3: left out: worse than the best arm after 2 seeds") == 1
    assert "run 8 of 16: lr=4, seed 2: left out: seed 1 failed" in said
    commands.fails = lambda words: False
    failed, said, did = run(study, commands)
    assert failed == []
    assert [word for word in did if "train" in word] == [f"train lr=4/seed-{seed}" for seed in (1, 2, 3, 4)]
    write_study_report(study)
    text = (study.folder / "report.md").read_text()
    said = "> The sequential test gave these arms no more seeds: lr=3 (after 2 seeds). This is not a significant"
    assert said in text
    assert "not done" not in text
    assert "| lr=3 | 2 |" in text
    assert not json.loads((study.folder / "report.json").read_text())["missing"]


def test_an_arm_that_fails_later_stops_no_others(config):
    """Of lr=3, the best one, seed 3 fails: lr=2 gets the seeds that it was denied, lr=1 is also worse than lr=2."""
    study = kept(config, over=["optim.lr=1,2,3"], seeds=4, stop_early=True)
    commands = Pretended({"lr=1": 9.0, "lr=2": 4.5, "lr=3": 4.0})
    failing = {"optim.lr": 3, "run.seed": 3}.items()
    commands.fails = lambda words: words[0] == "train" and settings(words).items() >= failing
    failed, said, did = run(study, commands)
    assert [error.partition(":")[0] for error in failed] == ["lr=3, seed 3"]
    trained = [word for word in did if "train" in word]
    assert trained[-3:] == [f"train lr={run}" for run in ("3/seed-3", "2/seed-3", "2/seed-4")]
    assert "run 8 of 12: lr=2, seed 3: left out: worse than the best arm after 2 seeds" in said
    results = read_results(study)
    assert (results.stopped, results.missing) == ({"lr=1": 2}, ["lr=3, seed 3", "lr=3, seed 4"])


def test_arms_that_have_all_their_seeds_were_not_stopped(config):
    study = kept(config, over=["optim.lr=1,2,3"], seeds=4, stop_early=True)
    run(study, commands := Pretended({"lr=1": 4.0, "lr=2": 4.01, "lr=3": 9.0}), only=[*range(1, 9)])
    results = read_results(study)
    assert (results.stopped, results.missing) == ({"lr=3": 2}, ["lr=1, seed 4", "lr=2, seed 4"])
    run(study, commands, only=[*range(1, 13)])
    assert (read_results(study).stopped, read_results(study).missing) == ({}, [])


def test_a_baseline_that_was_stopped_is_named(config):
    study = kept(config, over=["optim.lr=1,2,3"], seeds=3, stop_early=True)
    run(study, Pretended({"lr=1": 9.0, "lr=2": 4.01, "lr=3": 4.0}))
    write_study_report(study)
    said = "The baseline lr=1 was stopped early, so there are no differences from it."
    assert said in (study.folder / "report.md").read_text()


def test_only_some_runs(config):
    study = kept(config, seeds=1)
    assert run(study, only=[2])[2] == [f"{word} strategy=span/seed-1" for word in ("train", "export", "evaluate")]
    with pytest.raises(UserError, match="has the runs 1 to 2, and no run 3"):
        run(study, only=[3])


STOPPED_STUDY = """
import sys
from pathlib import Path
from evaluation.study import Stopped
from launchers.local import child_commands
said = Path(sys.argv[1])
with child_commands(["bash", "-c"]) as run:
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
