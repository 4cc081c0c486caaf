"""`maskwright status`, `stop`, `logs` and `plan --from` on the folder of a real run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from data_prep.common.errors import UserError
from pretrain.export.published_card import training_sections
from pretrain.run import RunFolder
from tests.support import runs
from tests.support.forked import ROOT
from tests.support.web import serving


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """Of a run that has been trained to its end."""
    folder = tmp_path_factory.mktemp("watching")
    (folder / "runs").mkdir()
    data = runs.tiny_data(folder / "data")
    path = runs.write_config(folder / "run.yaml", runs.tiny_config(data, folder / "runs" / "done"))
    trained = runs.maskwright("train", path)
    assert trained.returncode == 0, trained.stderr
    return path


@pytest.fixture(scope="module")
def done(config) -> Path:
    return config.parent / "runs" / "done"


def told(*arguments: str | Path) -> dict:
    result = runs.maskwright(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


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
    lines = runs.maskwright("logs", run, "--all").stdout.splitlines()
    assert len(lines) == len((done / "journal.jsonl").read_text().splitlines())
    (run / "environment.json").write_text("[1")
    (run / "checkpoints" / "step-00000024" / "manifest.json").write_text("{}")
    found = told("status", run)
    assert found["starts"] is None
    assert "manifest.json" in found["last_checkpoint"]["problem"]
    journal.unlink()
    shutil.rmtree(run / "checkpoints")
    found = told("status", run)
    assert (found["loss"], found["last_checkpoint"], found["state"]) == (None, None, "completed")
    assert "no log yet" in runs.maskwright("logs", run).stderr
    (run / "status.json").write_text("{")
    assert runs.maskwright("status", run).returncode == 1


def test_text_of_a_run_cannot_control_the_terminal(done, tmp_path):
    run, hostile = (
        shutil.copytree(done, tmp_path / "run\x1b[31m"),
        "\x1b]0;title\x07\x1b[2J \x9b31m \u202egnorw\u202c \r ok \u200d",
    )
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"reason": hostile, "state": "failed"}))
    environment = json.loads((run / "environment.json").read_text())
    environment["hosts"][0]["host"] = environment["attention_reason"] = hostile
    (run / "environment.json").write_text(json.dumps(environment))
    (run / "slurm").mkdir()
    (run / "slurm" / "7.log").write_text(f"begin {hostile} end\n")
    journal = run / "journal.jsonl"
    journal.write_text(json.dumps({"step": 1, "time": 1.0, "metrics": {hostile: 1.0}}) + "\n" + journal.read_text())
    commands = (["status"], ["status", "--json"], ["logs"], ["logs", "--job", "7"])
    for command in (*commands, ["checkpoints"], ["track", "sync"], ["plan", "--from"]):
        result = runs.maskwright(*command, run)
        for text in (result.stdout, result.stderr):
            assert set(text) & set("\x1b\x07\x9b\u202e\r") == set(), command
    assert "\\u001b]0;title" in runs.maskwright("status", run).stdout
    assert "\u200d end" in runs.maskwright("logs", run).stdout
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
        connecting = (
            ("replay", run, "--step", "3"),
            ("audit", run),
            ("checkpoints", run),
            ("plan", file),
            ("doctor", file),
        )
        for command in connecting:
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


def test_logs_are_those_of_the_newest_job_or_the_journal(done, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(done, run)
    lines = runs.maskwright("logs", run, "-n", "3")
    assert "journal.jsonl" in lines.stderr
    assert len(lines.stdout.splitlines()) == 3
    assert "step 24" in lines.stdout
    (run / "slurm").mkdir()
    (run / "slurm" / "7.log").write_text("".join(f"line {n}\n" for n in range(100)) + "torn")
    (run / "slurm" / "12_3.log").write_bytes(b"an array's \xff\n")
    assert runs.maskwright("logs", run, "--job", "7", "-n", "2").stdout == "line 99\ntorn\n"
    assert len(runs.maskwright("logs", run, "--job", "7", "--all").stdout.splitlines()) == 101
    assert "an array's" in runs.maskwright("logs", run, "--job", "12_3").stdout
    assert "Its jobs are" in runs.maskwright("logs", run, "--job", "8").stderr
    assert "wrote no stacks" in runs.maskwright("logs", run, "--rank", "0").stderr


def test_a_run_is_followed_to_its_end_and_stopped(config, tmp_path):
    run = tmp_path / "run"
    overrides = (f"run.dir={run}", "train.steps=100000", "guard.dry_run=false")
    trains = runs.start_maskwright(tmp_path / "log", "train", config, *overrides)
    follows = None
    try:
        runs.wait_for_step(run, 2)
        follows = runs.start_maskwright(tmp_path / "followed", "logs", run, "--follow", "--all")
        runs.wait_for_step(run, 20)
        found = told("status", run)
        assert found["state"] == "running"
        assert found["seconds_left"] > 0
        stopped = runs.maskwright("stop", run, config.parent / "runs" / "done")
        assert "asked" in stopped.stdout
        assert "it is completed" in stopped.stdout
        assert trains.wait(120) == 75
        assert follows.wait(60) == 0
    finally:
        trains.kill()
        if follows:
            follows.kill()
    shown = (tmp_path / "followed").read_text()
    last = max(runs.losses(run))
    assert all(f" step {step:,} " in shown for step in range(1, last + 1)), "steps are missing"


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


def test_watching_starts_without_torch(done):
    code = "import sys; sys.argv[1:] = {}\nfrom launchers.app import app\napp(standalone_mode=False)\n"
    code += "sys.exit('torch' in sys.modules)"
    for words in (["status", str(done)], ["logs", str(done)]):
        result = subprocess.run([sys.executable, "-c", code.format(words)], cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
