"""`maskwright status` and `stop`, in this process."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from launchers.display import facts_table
from launchers.slurm import client
from launchers.watch import run_table
from launchers.watch.run_table import RunView
from pretrain.reporting import summarize
from pretrain.run import Entry, RunFolder
from tests.support.in_process import command
from tests.support.slurm_jobs import program


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.create()
    return found


def test_a_reason_is_printed_as_it_is(folder):
    folder.write_status("failed", 3, 10, "[/__w/gloo/pair.cc:553] closed [bold]", "run it again")
    result = command("status", folder.path)
    assert result.code == 0, result.err
    assert "[/__w/gloo/pair.cc:553] closed [bold]" in result.out


def test_attention_and_kernels_of_a_run_are_shown(folder):
    folder.write_status("completed", 10, 10, "because", "none")
    recorded = {"attention": "sdpa", "attention_reason": "train.precision is fp32", "kernels": "Triton"}
    recorded |= {"kernels_reason": "agrees with the plain step on 4 rows", "micro_batch_size": 16}
    folder.environment.write_text(json.dumps(recorded))
    shown = json.loads(command("status", folder.path, "--json").out)
    assert {name: shown[name] for name in recorded} == recorded
    table = command("status", folder.path).out
    assert "sdpa (train.precision is fp32)" in table
    assert "Triton (agrees with the plain step on 4 rows)" in table
    assert "16 rows" in table
    folder.environment.write_text(json.dumps({"attention": "varlen", "flash_attention": 3, "kernels": ["plain"]}))
    assert "varlen (FlashAttention 3)" in command("status", folder.path).out
    shown = json.loads(command("status", folder.path, "--json").out)
    assert (shown["attention"], shown["attention_reason"], shown["kernels"]) == ("varlen", None, None)


def test_accuracy_of_held_out_text_stands_beside_its_loss(folder):
    folder.write_status("completed", 10, 10, "because", "none")
    training = Entry(10, 1.0, {"train/loss": 4.0, "train/masked_accuracy": 0.25})
    held_out = Entry(10, 1.0, {"eval/loss": 4.1772, "eval/masked_accuracy": 0.282})
    folder.journal.write_bytes(training.to_line() + held_out.to_line())
    lines = [line.rstrip() for line in command("status", folder.path).out.splitlines()]
    shown = [" ".join(line.split()) for line in lines if "accuracy" in line]
    assert shown == ["training accuracy 25.0% (of one step)", "held-out loss 4.1772 (masked accuracy 28.2%)"]
    assert json.loads(command("status", folder.path, "--json").out)["eval_masked_accuracy"] == 0.282


def test_a_narrow_terminal_shows_all_of_a_link(capsys):
    address = f"http://127.0.0.1:5000/#/experiments/1/runs/{'0123456789abcdef' * 2}"
    Console(width=60).print(facts_table({"MLflow": address}))
    assert "".join(capsys.readouterr().out.split()) == f"MLflow{address}"


@pytest.mark.parametrize(("state", "code"), [("completed", 0), ("stopped", 75), ("failed", 1)])
def test_exit_code_is_the_run_s(folder, state, code):
    folder.write_status(state, 10, 10, "because", "none")
    assert command("status", folder.path, "--exit-code").code == code


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["status", "--follow"], ["stop"]], ids=" ".join)
def test_a_missing_folder_is_named_after_the_others(folder, words):
    folder.write_status("completed", 10, 10, "because", "none")
    shown = command(*words, folder.path.with_name("typo"), folder.path)
    assert shown.code == 1
    assert "completed" in shown.out
    assert f"{folder.path.with_name('typo')} does not exist. Name a run folder" in shown.err
    assert command("status", folder.path.with_name("typo"), folder.path.with_name("another")).code == 1


def test_a_run_that_nobody_holds_has_failed(folder):
    folder.write_status("running", 4, 10, "training", "none")
    shown = json.loads(command("status", folder.path, "--json").out)
    assert shown["state"] == "failed"
    assert "after step 4" in shown["reason"]
    command("stop", folder.path)
    assert not folder.stop.exists()
    lock = folder.lock()
    shown = json.loads(command("status", folder.path, "--json").out)
    assert shown["state"] == "running"
    command("stop", folder.path)
    assert folder.stop.exists()
    lock.close()


@pytest.fixture
def queue(folder, monkeypatch):
    """Sets the state of job 12 of the run, which scancel takes away, if it waits, as `taken` says."""
    programs = folder.path.parent / "bin"
    state, values = programs / "state", dict.fromkeys(client.FIELDS, "x")
    values |= {"id": "12", "comment": f"maskwright:{folder.path}", "state": "%s"}
    line = client.SEPARATOR.join(values.values())
    program(programs, "squeue", f"[ ! -s {state} ] || printf '{line}\\n' $(cat {state})")
    program(programs, "scancel", f"echo $@ >>{programs}/said; mv {programs}/next {state}")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (folder.path / "slurm").mkdir()

    def is_(now, then=""):
        state.write_text(now)
        (programs / "next").write_text(then)
        return programs / "said"

    return is_


def test_a_job_that_waits_is_taken_out_of_the_queue(folder, queue):
    folder.write_status("stopped", 4, 10, "stopped before Slurm ends the job", "none: Slurm starts it")
    said = queue("PENDING")
    result = command("stop", folder.path)
    assert result.code == 0, result.err
    assert "took its job 12 out of the queue" in result.out
    assert said.read_text() == "--state=PENDING 12\n", "a job that started meanwhile is not killed"
    status = folder.read_status()
    assert (status.state, status.step, status.next_action) == ("stopped", 4, "submit the run again to resume")
    assert not folder.stop.exists()


def test_a_job_that_has_not_begun_to_train_is_asked(folder, queue):
    folder.write_status("stopped", 4, 10, "stopped", "none")
    for now, then in (("RUNNING", ""), ("PENDING", "RUNNING")):
        queue(now, then)
        result = command("stop", folder.path)
        assert result.code == 0, result.err
        assert "before its first step" in result.out
        assert folder.is_asked_to_end()
        folder.stop.unlink()


def test_a_job_that_stays_in_the_queue_is_an_error(folder, queue):
    queue("PENDING", "PENDING")
    result = command("stop", folder.path)
    assert "job 12 is still in the queue" in result.err
    assert not folder.stop.exists()


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (1000, "run state step % loss tokens/s left updated job next"),
        (80, "run state step % loss left next"),
        (60, "run state step loss"),
        (45, "run state step"),
    ],
)
def test_a_narrow_terminal_gets_the_columns_that_matter_most(folder, monkeypatch, width, columns, capsys):
    folder.write_status("completed", 20_000, 1_000_000, "training", "export")
    run = replace(summarize(folder.path), run=Path("runs/books"), loss=1.5, seconds_left=90_000.0)
    monkeypatch.setattr(run_table, "text_console", lambda _: Console(width=width))
    run_table.print_runs([RunView(run, [])] * 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == columns.split(), lines
    assert len(lines) == 3, "no line wraps"


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (120, "run state step % loss tokens/s left updated job next"),
        (80, "run state step loss next"),
        (60, "run state step next"),
    ],
)
def test_a_long_problem_folds_and_takes_no_column(folder, monkeypatch, width, columns, capsys):
    folder.write_status("completed", 2_000, 10_000, "training", "export")
    run = replace(summarize(folder.path), run=Path("runs/books"), loss=1.5, seconds_left=90_000.0)
    problem = " ".join(["damaged"] * 18) + " status"
    broken = replace(run, run=Path("runs/b"), status=None, loss=None, seconds_left=None, problem=problem)
    monkeypatch.setattr(run_table, "text_console", lambda _: Console(width=width))
    run_table.print_runs([RunView(run, []), RunView(broken, [])])
    header, intact, *folded = capsys.readouterr().out.splitlines()
    assert header.split() == columns.split()
    assert intact.startswith("runs/books")
    assert "2,000 of 10,000" in intact
    assert " ".join(line[header.index("next") :].strip() for line in folded) == problem
    assert max(map(len, folded)) <= width
