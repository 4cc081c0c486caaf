"""Two starts of the same run at the same time: one trains, the other is refused and changes nothing."""

import time

from pretrain.run import RunFolder
from tests.support import runs


def test_a_second_start_is_refused_in_one_line_and_touches_nothing(data, tmp_path):
    """While the first is starting, and while it trains and is asked to stop."""
    run = tmp_path / "run"
    config = runs.config_file(data, run, train__steps=100_000)
    first = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2")
    runs.wait_for(lambda: (run / "status.json").exists() and 1 in runs.ranks_of(config))
    for state in ("starting", "running"):
        if state == "running":
            runs.wait_for_step(run, 3)
        runs.ranks_of(config)[1].suspend()  # the first would get on before the second start
        assert runs.status(run)["state"] == state
        if state == "running":
            (run / "STOP").touch()  # a request to the first
        began = time.monotonic()
        second = runs.maskwright("train", config, "--procs", "2")
        assert second.returncode == 1
        assert time.monotonic() - began < 15
        assert second.stderr.count("\n") == 1
        assert f"process {first.pid} on" in second.stderr
        assert "is training in this run folder" in second.stderr
        runs.ranks_of(config)[1].resume()
    assert first.wait(timeout=60) == 75, "the second start took the request away"
    assert runs.status(run)["state"] == "stopped"
    assert not (run / "STOP").exists()


def test_of_starts_in_the_same_instant_one_trains(data, tmp_path):
    run = tmp_path / "run"
    config = runs.config_file(data, run, train__steps=4, schedule__warmup_steps=1)
    logs = [tmp_path / f"log-{number}" for number in range(4)]
    commands = [runs.start_maskwright(log, "train", config, "--procs", "2") for log in logs]
    codes = [command.wait(timeout=120) for command in commands]
    said = [log.read_text() for log in logs]
    assert sum("step 4/4" in text for text in said) == 1, said
    for code, text in zip(codes, said, strict=True):
        if "step 4/4" in text:
            assert code == 0
        elif code:
            assert text.count("\n") == 1, text
            assert "is training in this run folder" in text
        else:  # it waited for the end of the run, and had nothing to do
            assert "completed after step 4 of 4" in text
    assert runs.status(run)["state"] == "completed"
    assert sorted(runs.losses(run)) == [1, 2, 3, 4]


def test_the_lock_outlives_a_killed_command_and_the_next_start_waits_for_its_processes(data, tmp_path):
    run = tmp_path / "run"
    config = runs.config_file(data, run, train__steps=100_000, guard__hang_seconds=0)
    first = runs.start_maskwright(tmp_path / "log", "train", config, "--procs", "2")
    runs.wait_for_step(run, 2)
    ranks = runs.ranks_of(config)
    ranks[1].suspend()  # so that the others cannot end
    first.kill()
    first.wait(timeout=10)
    log = tmp_path / "second"
    second = runs.start_maskwright(log, "train", config, "--procs", "2", "run.stop_after=1")
    runs.wait_for(lambda: "waiting for the end of a run that is stopping here" in log.read_text())
    assert runs.ranks_of(config) == ranks
    assert RunFolder(run).is_held()
    ranks[1].resume()
    assert second.wait(timeout=60) == 75, log.read_text()
    assert log.read_text().count("waiting") == 1
    assert not runs.ranks_of(config)
