"""`maskwright status`, `stop` and `plan --from` on the folder of a real run."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from data_prep.common.errors import UserError
from pretrain.export.publication import training_sections
from pretrain.run import RunFolder
from tests.support import runs
from tests.support.web import serving


@pytest.fixture(scope="module")
def config(data, tmp_path_factory) -> Path:
    """Of a run that has been trained to its end."""
    folder = tmp_path_factory.mktemp("watching")
    (folder / "runs").mkdir()
    return runs.trained(data, folder / "runs" / "done").with_suffix(".yaml")


@pytest.fixture(scope="module")
def done(config) -> Path:
    return config.with_suffix("")


def told(*arguments: str | Path) -> dict:
    return json.loads(runs.succeed(*arguments, "--json").stdout)


def test_status_says_what_the_journal_says(done):
    found = told("status", done)
    assert found | runs.status(done) == found
    assert found["percent"] == 100
    assert found["loss"] == runs.losses(done)[24]
    assert found["loss_average"] == pytest.approx(sum(runs.losses(done).values()) / 24)
    assert found["last_checkpoint"]["step"] == 24
    assert found["last_checkpoint"]["problem"] is None
    assert (found["starts"], found["seconds_left"]) == (1, None)
    shown = runs.maskwright("status", done).stdout
    assert "24 of 24 (100.0%)" in shown
    assert f"{found['tokens_per_second']:,.0f}" in shown


def test_several_runs_and_folders_of_runs(done, tmp_path):
    shutil.copytree(done, tmp_path / "a" / "one")
    shutil.copytree(done, tmp_path / "a" / "two")
    (tmp_path / "a" / "empty").mkdir()
    found = told("status", tmp_path / "a")
    assert [Path(each["run"]).name for each in found] == ["one", "two"]
    assert told("status", tmp_path / "a" / "one", tmp_path / "a")[0]["run"].endswith("one")
    shown = runs.maskwright("status", tmp_path / "a").stdout
    assert shown.count("completed") == 2
    assert shown.count("24 of 24") == 2
    assert runs.maskwright("status", tmp_path / "a", "--exit-code").returncode == 1
    assert runs.maskwright("status", tmp_path / "a" / "empty").returncode == 1


def test_damage_leaves_its_part_out_alone(done, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(done, run)
    journal = run / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'\xff\xfe\n{"step": 25, "metrics"\n{"a": 1}\n[]\n"x"')
    assert told("status", run)["loss"] == runs.losses(done)[24]
    (run / "environment.json").write_text("[1")
    (run / "checkpoints" / "step-00000024" / "manifest.json").write_text("{}")
    found = told("status", run)
    assert found["starts"] is None
    assert "manifest.json" in found["last_checkpoint"]["problem"]
    journal.unlink()
    shutil.rmtree(run / "checkpoints")
    found = told("status", run)
    assert (found["loss"], found["last_checkpoint"], found["state"]) == (None, None, "completed")
    (run / "status.json").write_text("{")
    assert runs.maskwright("status", run).returncode == 1


def test_text_of_a_run_cannot_control_the_terminal(done, tmp_path):
    run = shutil.copytree(done, tmp_path / "run\x1b[31m")
    hostile = "\x1b]0;title\x07\x1b[2J \x9b31m \u202egnorw\u202c \r ok \u200d"
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"reason": hostile, "state": "failed"}))
    environment = json.loads((run / "environment.json").read_text())
    environment["hosts"][0]["host"] = environment["attention_reason"] = hostile
    (run / "environment.json").write_text(json.dumps(environment))
    journal = run / "journal.jsonl"
    journal.write_text(json.dumps({"step": 1, "time": 1.0, "metrics": {hostile: 1.0}}) + "\n" + journal.read_text())
    (run / "slurm").mkdir()
    (run / "slurm" / "\x1b[2J.log").touch()
    commands = (["status"], ["status", "--follow"], ["status", "--json"])
    for command in (*commands, ["checkpoints"], ["track", "sync"], ["plan", "--from"]):
        result = runs.maskwright(*command, run)
        for text in (result.stdout, result.stderr):
            assert set(text) & set("\x1b\x07\x9b\u202e\r") == set(), command
    assert "\\u001b]0;title" in runs.maskwright("status", run).stdout
    assert json.loads(runs.maskwright("status", run, "--json").stdout)["reason"] == hostile


def test_no_address_that_only_the_run_names_is_read_unless_the_user_agrees(done, tmp_path):
    run = shutil.copytree(done, tmp_path / "run")
    config, environment = (run / "config.yaml").read_text(), json.loads((run / "environment.json").read_text())
    requests = []
    with serving(tmp_path) as server:
        server.verify_request = lambda *request: not requests.append(request)
        values = yaml.safe_load(config)
        values["data"] |= {"train": [{"path": f"{server.url}/data"}], "valid": f"{server.url}/valid"}
        values["checkpoint"]["remote"] = f"{server.url}/remote"
        environment["data"][0]["location"] = f"{server.url}/data"
        (run / "config.yaml").write_text(yaml.safe_dump(values))
        (run / "environment.json").write_text(json.dumps(environment))
        with pytest.raises(UserError, match=f"is known from {run}/environment.json alone. Add --yes"):
            training_sections(RunFolder(run), 24)
        file = run / "config.yaml"
        of_run = (("replay", run, "--step", "3"), ("audit", run), ("checkpoints", run))
        for command in (*of_run, ("plan", file), ("doctor", file)):
            result = runs.maskwright(*command)
            assert result.returncode == (0 if command[0] == "checkpoints" else 1), command
            assert f"is known from {run}/" in result.stderr
            assert "Add --yes" in result.stderr
        assert not requests
        for command in (("config", "show", run), ("status", run)):
            runs.maskwright(*command)
        assert not requests
        (run / "config.yaml").write_text(config.replace("remote: null", f"remote: {server.url}/remote"))
        runs.maskwright("checkpoints", run, "--yes")
        assert requests


def test_status_names_the_log_of_the_newest_job(done, tmp_path):
    run = shutil.copytree(done, tmp_path / "a run")
    assert told("status", run)["log"] is None
    (run / "slurm").mkdir()
    for number, name in enumerate(("12_3", "7", "link")):
        log = run / "slurm" / f"{name}.log"
        log.touch()
        os.utime(log, (number, number))
    log.unlink()
    log.symlink_to(run / "config.yaml")
    os.mkfifo(run / "slurm" / "8.log")
    assert told("status", run)["log"] == f"{run}/slurm/7.log"
    assert f"{run}/slurm/7.log; follow it with: tail -F '{run}/slurm/7.log'" in runs.maskwright("status", run).stdout
    (run / "slurm").rename(tmp_path / "slurm")
    (run / "slurm").symlink_to(tmp_path / "slurm")
    assert told("status", run)["log"] is None


def test_a_run_is_followed_to_its_end_and_stopped(config, tmp_path):
    run = tmp_path / "run"
    overrides = (f"run.dir={run}", "train.steps=100000", "guard.dry_run=false")
    trains = runs.start_maskwright(tmp_path / "log", "train", config, *overrides)
    follows = None
    try:
        runs.wait_for_step(run, 2)
        follows = runs.start_maskwright(tmp_path / "followed", "status", run, "--follow")
        runs.wait_for_step(run, 20)
        found = told("status", run)
        assert found["state"] == "running"
        assert found["seconds_left"] > 0
        stopped = runs.maskwright("stop", run, config.with_suffix(""))
        assert "asked" in stopped.stdout
        assert "it is completed" in stopped.stdout
        assert trains.wait(120) == 75
        assert follows.wait(60) == 0
    finally:
        trains.kill()
        if follows:
            follows.kill()
    shown = (tmp_path / "followed").read_text()
    assert shown.startswith(f"{run} | running | step ")
    assert f"\n{run} | stopped | step {max(runs.losses(run)):,} of 100,000 | loss " in shown


def test_a_plan_by_the_run_s_own_speed(config, done):
    """Operations per token equal the run's batches, although the plan has only document lengths."""
    found = told("plan", config, "--from", done)
    lines = [json.loads(line) for line in (done / "journal.jsonl").read_text().splitlines()]
    steps = [line["metrics"] for line in lines if "data/epoch" in line["metrics"]]
    measured = sorted(step["speed/tflops"] for step in steps[10:])
    assert "median of 14 steps" in found["speed"][0]["source"]
    assert found["flops"] / found["speed"][0]["seconds"] / 1e12 == pytest.approx(sum(measured[6:8]) / 2)
    per_token = sum(step["speed/tflops"] / step["speed/tokens_per_second"] for step in steps) / 24 * 1e12
    assert found["flops"] / found["tokens"] == pytest.approx(per_token, rel=0.03)
