"""Immediate stops: before the first step, and by a second Ctrl-C."""

import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from pretrain import checkpoint
from pretrain.run import RunFolder
from tests.support import forked, runs

QUICK_SECONDS = 3.0
"""How long the command may take to end; more on a machine that is busy with other work, see `assert_quick`."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.tiny_data(tmp_path_factory.mktemp("data"))


def assert_quick(since: float) -> None:
    """The command ended without waiting for anything; imports alone take longer than this on a busy machine."""
    assert time.monotonic() - since < 2 * QUICK_SECONDS


@pytest.mark.parametrize(
    ("number", "delay", "real"),
    [
        (signal.SIGINT, 0.0, False),
        (signal.SIGTERM, 0.0, False),
        (signal.SIGINT, 0.5, True),
        pytest.param(signal.SIGTERM, 0.0, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 1.0, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 1.5, True, marks=pytest.mark.slow),
    ],
)
def test_a_stop_before_the_first_step_ends_the_command_at_once(data, tmp_path, number, delay, real):
    run = tmp_path / "run"
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run))
    command = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2", real=real)
    runs.wait_for(lambda: (run / "status.json").exists())
    time.sleep(delay)
    assert runs.status(run)["state"] == "starting"
    asked = time.monotonic()
    command.send_signal(number)
    code, log = command.wait(timeout=60), (tmp_path / "log").read_text()
    assert_quick(asked)
    assert code == 75, log
    assert not runs.ranks_of(config)
    forked.assert_none_left()
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"stopped after step 0 of 24: ended by {name} before training began; run the same command again" in log
    assert runs.status(run)["state"] == "stopped"
    assert not RunFolder(run).is_held()
    assert runs.maskwright("train", config, "train.steps=3", "--procs", "2").returncode == 0


def test_a_resumed_run_that_is_stopped_before_its_first_step_keeps_its_checkpoints(data, tmp_path):
    run = tmp_path / "run"
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, train__steps=5))
    assert runs.maskwright("train", config, "--procs", "2").returncode == 0
    ((_, path),) = checkpoint.committed(run / "checkpoints")
    command = runs.start_maskwright(tmp_path / "log", "train", config, "train.steps=9", "--procs", "2")
    runs.wait_for(lambda: runs.status(run)["state"] == "starting")
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=60) == 75
    status = runs.status(run)
    assert (status["state"], status["step"], status["total_steps"]) == ("stopped", 5, 9)
    assert status["next_action"] == "run the same command again to resume after step 5"
    assert checkpoint.verify(path) is None
    assert runs.maskwright("train", config, "train.steps=9", "--procs", "2").returncode == 0
    assert sorted(runs.losses(run)) == list(range(1, 10))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_a_second_ctrl_c_ends_the_run_at_once(data, tmp_path, seed):
    run, rng = tmp_path / "run", random.Random(seed)
    settings = {"train__steps": 24, "checkpoint": {"every_steps": 2}}
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, **settings))
    alone = tmp_path / "alone"
    assert runs.maskwright("train", config, f"run.dir={alone}", "--procs", "2").returncode == 0

    command = runs.start_maskwright(tmp_path / "log", "train", config, "train.steps=100000", "--procs", "2")
    runs.wait_for_step(run, rng.randint(5, 12))
    ranks = runs.ranks_of(config)
    for rank in ranks.values():
        rank.suspend()  # so that they cannot save and end
    command.send_signal(signal.SIGTERM if seed % 2 else signal.SIGINT)
    runs.wait_for(lambda: "Stopping: writing a checkpoint first." in (tmp_path / "log").read_text())
    assert "Press Ctrl-C again to stop now." in (tmp_path / "log").read_text()
    if seed:
        for rank in ranks.values():
            rank.resume()
        time.sleep(rng.uniform(0, 0.05))
    asked = time.monotonic()
    command.send_signal(signal.SIGINT)
    code = command.wait(timeout=60)
    assert_quick(asked)
    assert code in ((130,) if seed == 0 else (130, 75)), "75: it had saved by then"
    psutil.wait_procs(list(ranks.values()), timeout=10)
    assert not runs.ranks_of(config)
    status, kept = runs.status(run), checkpoint.committed(run / "checkpoints")
    assert (status["state"], status["step"]) == ("stopped", kept[0][0])
    assert all(checkpoint.verify(path) is None for _, path in kept)
    assert "STOP" not in (tmp_path / "log").read_text()
    assert not (run / "STOP").exists()
    if code == 130:
        assert (
            "ended by Ctrl-C at once; run the same command again to resume after step"
            in status["reason"] + "; " + (status["next_action"])
        )
    assert runs.maskwright("train", config, "--procs", "2").returncode == 0
    assert runs.losses(run) == runs.losses(alone)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_are_processes_ends_the_command_with_a_message(data, tmp_path, number):
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, tmp_path / "run"))
    command = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2", real=True)
    runs.wait_for(lambda: catches(command.pid, signal.SIGTERM))
    asked = time.monotonic()
    command.send_signal(number)
    code, log = command.wait(timeout=60), (tmp_path / "log").read_text()
    assert_quick(asked)
    assert code == 75, log
    assert "before training began" in log
    assert "Traceback" not in log
    assert not runs.ranks_of(config)
