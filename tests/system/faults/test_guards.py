"""Rows 12, 13, 15, 16 and 17 of the faults, in real runs on two processes with injected faults."""

import contextlib
import re
import socket
import time
from importlib.metadata import version

import psutil
import pytest

from pretrain import checkpoint
from pretrain.reporting import replay
from pretrain.run import JournalReader
from tests.support import runs


def test_nan_on_one_rank_skips_the_step_on_all_and_too_many_end_the_run(data, tmp_path, harm, monkeypatch):
    """Row 15. The save that is in flight when the run ends, of step 8, is committed before.

    The failure is reported before the run waits for MLflow, which does not answer.
    """
    run = tmp_path / "run"
    harm(*(f"nan_gradient:rank=1,step={step}" for step in (3, 9, 10)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        config = runs.config_file(data, run, zero__stage=2, guard__max_skipped=2)
        done = runs.maskwright("train", config, "--procs", "2")
    assert done.returncode == 1
    assert runs.status(run)["time"] - JournalReader(run / "journal.jsonl").entries()[-1].time < 7
    assert done.stderr.index("error: ") < done.stderr.index("Some metrics were not sent to MLflow")
    assert "Traceback" not in done.stderr
    assert runs.metric(run, "train/skipped") == {3: 1.0, 9: 1.0, 10: 1.0}
    status = runs.status(run)
    assert (status["state"], [step for step, _ in checkpoint.committed(run / "checkpoints")]) == ("failed", [8])
    assert "2 steps in a row" in status["reason"]
    assert "9 (from row 64 on), 10 (from row 72 on)" in status["reason"]
    assert f"maskwright replay {run} --step 9" in status["reason"]
    replay(run, 9)  # raises unless the batch has the checksum in the journal


def test_a_slow_rank_and_one_with_a_flipped_bit_are_named(data, tmp_path, harm):
    """Rows 13 and 17."""
    run = tmp_path / "run"
    harm("slow:rank=1,step=1,seconds=0.05", "flip_bit:rank=1,step=56")
    settings = {"train__steps": 80, "guard__replica_check_steps": 7, "checkpoint__every_steps": 60}
    done = runs.maskwright("train", runs.config_file(data, run, **settings), "--procs", "2")
    assert done.returncode == 1
    assert len(re.findall(r"warning: rank 1 \(on \S+\) is slow", done.stderr)) == 1, done.stderr
    assert "warning: rank 0" not in done.stderr
    status = runs.status(run)
    assert status["state"] == "failed"
    assert re.search(r"after step 56, the weights of rank 0 .*rank 1 .* differ from each other", status["reason"])
    assert not checkpoint.committed(run / "checkpoints")


def test_a_lost_gradient_ends_the_run_in_the_trial_step(data, tmp_path, harm):
    run = tmp_path / "run"
    harm("lost_gradient:rank=1,step=0")
    done = runs.maskwright("train", runs.config_file(data, run), "--procs", "2")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    status = runs.status(run)
    assert (status["state"], status["step"]) == ("failed", 0)
    assert re.match(
        r"Gradients of head_norm\.bias differ from a plain all-reduce by \S+% of their norm with ZeRO 1, "
        rf"fp32 and DeepSpeed {re.escape(version('deepspeed'))}\. Use another version",
        status["reason"],
    )


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ("stop", r"no sign of life from rank 1 \(on \S+\), last seen at step \d, "),
        pytest.param(
            "hang",
            r"rank 1 \(on \S+\) behind at step 6, data, while others are at step 6, collective",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rank_that_stops_is_named_in_time(data, tmp_path, harm, fault, wanted):
    """Row 12."""
    run, hang_seconds = tmp_path / "run", 4
    harm(f"{fault}:rank=1,step=6")
    path = runs.config_file(data, run, guard__hang_seconds=hang_seconds, train__steps=10000)
    process = runs.start_maskwright(tmp_path / "log", "train", path, "--procs", "2")
    runs.wait_for_step(run, 5)
    ranks, since = runs.ranks_of(path), time.monotonic()
    psutil.wait_procs([ranks[0]], timeout=60)
    assert time.monotonic() - since < 5 * hang_seconds
    status = runs.status(run)
    assert status["state"] == "failed"
    assert re.search(wanted, status["reason"]), status["reason"]
    stacks = run / "stacks" / "rank-00000.txt"
    assert f"{stacks.parent} has what each process was at" in status["reason"]
    assert "pretrain/loop/step_loop.py" in stacks.read_text()
    with contextlib.suppress(psutil.NoSuchProcess):  # a rank that hangs ends itself
        ranks[1].kill()  # the node comes back, or is taken out; the launcher would do it after half a minute
    assert process.wait(timeout=60) == 1
    psutil.wait_procs(list(ranks.values()), timeout=10)
    assert not runs.ranks_of(path)


SPIKE = {"train__steps": 40, "schedule__decay_fraction": 0.0, "guard__spike_window": 8, "guard__spike_steps": 3}
SPIKE |= {"guard__rollback": True, "guard__skip_steps": 2, "guard__max_rollbacks": 2}
BAD_ROW = 8 * 19  # the batch of step 20


def test_a_spike_is_gone_back_for_and_its_batches_left_out(data, tmp_path, harm):
    """Row 16."""
    run = tmp_path / "run"
    harm(f"bad_batch:row={BAD_ROW}")
    done = runs.maskwright("train", runs.config_file(data, run, eval__every_steps=23, **SPIKE), "--procs", "1")
    assert done.returncode == 0, done.stderr
    assert runs.metric(run, "train/spike") == {21: 1.0}
    assert runs.metric(run, "train/rollback_to") == {21: 16.0}
    assert runs.metric(run, "train/rows_left_out") == {21: 8.0 * 7}
    assert f"maskwright replay {run} --step 21" in done.stderr
    assert "went back from the spike at step 21 to step 16, rows 128 to 183 left out" in done.stderr
    entries = {entry.step: entry for entry in JournalReader(run / "journal.jsonl").entries(batches=True)}
    assert [entries[step].batch["position"]["dealt"] for step in (16, 17, 40)] == [120, 184, 184 + 23 * 8]
    assert max(runs.losses(run).values()) < 6, "the losses after the rollback count"
    lines = [entry for _, entry in JournalReader(run / "journal.jsonl").lines() if entry]
    evaluated = [entry.step for entry in lines if "eval/loss" in entry.metrics]
    assert evaluated == [23, 40], "the weights of the spike, at its third step, are not evaluated"
    newest = checkpoint.read(checkpoint.committed(run / "checkpoints")[0][1])
    assert newest.state["guards"]["rollbacks"] == [{"spike": 21, "to": 16, "first_row": 128, "next_row": 184}]
    replayed = replay(run, 17)
    assert replayed.position.dealt == 184


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_a_run_that_went_back_and_is_killed_ends_as_one_that_was_not(data, tmp_path, harm, stage):
    """Row 16: killed before the first checkpoint after going back, and again after it."""
    harm(f"bad_batch:row={BAD_ROW}")
    whole = runs.config_file(data, tmp_path / "whole", zero__stage=stage, **SPIKE)
    runs.succeed("train", whole, "--procs", "2")
    run, log = tmp_path / "run", tmp_path / "log"
    path = runs.config_file(data, run, zero__stage=stage, **SPIKE)
    for times, wanted_step in ((1, 0), (2, 33)):
        process = runs.start_maskwright(log, "train", path, "--procs", "2")
        while log.read_text().count("went back") < times and process.poll() is None:
            time.sleep(0.02)
        if wanted_step:
            runs.wait_for_step(run, wanted_step)
        runs.ranks_of(path)[1].kill()
        assert process.wait(timeout=60) != 0
    runs.succeed("train", path, "--procs", "2")
    assert runs.losses(run) == runs.losses(tmp_path / "whole")
    assert runs.metric(run, "train/rows_left_out") == runs.metric(tmp_path / "whole", "train/rows_left_out")
