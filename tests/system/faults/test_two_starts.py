"""Two starts of the same run at the same time: one trains, the other is refused and changes nothing."""

import time

import pytest

from pretrain.run import RunFolder
from tests.support import runs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.tiny_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("moment", ["start", "step"])
def test_a_second_start_is_refused_in_one_line_and_touches_nothing(data, tmp_path, moment):
    run = tmp_path / "run"
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, train__steps=100_000))
    first = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2")
    runs.wait_for(lambda: (run / "status.json").exists())
    if moment == "step":
        runs.wait_for_step(run, 3)
    assert runs.status(run)["state"] == ("starting" if moment == "start" else "running")
    (run / "STOP").touch()  # a request to the first
    began = time.monotonic()
    second = runs.maskwright("train", config, "--procs", "2")
    assert second.returncode == 1
    assert time.monotonic() - began < 15
    assert second.stderr.count("\n") == 1
    assert f"process {first.pid} on" in second.stderr
    assert "is training in this run folder" in second.stderr
    assert first.wait(timeout=60) == 75, "the second start took the request away"
    assert runs.status(run)["state"] == "stopped"
    assert not (run / "STOP").exists()


def test_of_starts_in_the_same_instant_one_trains(data, tmp_path):
    run = tmp_path / "run"
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, train__steps=4))
    logs = [tmp_path / f"log-{number}" for number in range(4)]
    commands = [runs.start_maskwright(log, "train", config, "--procs", "2") for log in logs]
    codes = [command.wait(timeout=120) for command in commands]
    assert sorted(codes) == [0, 1, 1, 1], codes
    for code, log in zip(codes, logs, strict=True):
        said = log.read_text()
        if code:
            assert said.count("\n") == 1, said
            assert "is training in this run folder" in said
    assert runs.status(run)["state"] == "completed"
    assert sorted(runs.losses(run)) == [1, 2, 3, 4]


def test_the_lock_outlives_a_killed_command_as_long_as_its_processes(data, tmp_path):
    run = tmp_path / "run"
    settings = {"train__steps": 100_000, "guard__hang_seconds": 0}
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, **settings))
    first = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2")
    runs.wait_for_step(run, 2)
    ranks = runs.ranks_of(config)
    ranks[1].suspend()  # so that the others cannot end
    first.kill()
    first.wait(timeout=10)
    second = runs.maskwright("train", config, "--procs", "2")
    assert second.returncode == 1
    assert "is training in this run folder" in second.stderr
    ranks[1].resume()
    runs.wait_for(lambda: not RunFolder(run).is_held())
    assert not runs.ranks_of(config)


def test_a_finished_run_and_a_refused_resume_start_no_process(data, tmp_path):
    run = tmp_path / "run"
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, train__steps=3))
    first = runs.maskwright("train", config)
    assert first.returncode == 0
    again = runs.maskwright("train", config)
    assert (again.returncode, again.stderr) == (0, first.stderr.splitlines(keepends=True)[-1])
    refused = runs.maskwright("train", config, "run.seed=8")
    assert refused.returncode == 1
    assert "cannot be resumed: run.seed was 7 and is 8" in refused.stderr
    assert refused.stderr.count("\n") == 1
    longer = runs.maskwright("train", config, "train.steps=4")
    assert longer.returncode == 0
    assert "step 4/4" in longer.stderr
