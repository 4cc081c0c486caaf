"""Edge cases of the supervisor: its history, reports of nodes, and answers of Slurm."""

import os
import shutil
import signal
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from launchers.slurm import client
from launchers.slurm.launch_attempt import AttemptStatus, free_port, host_of, run_step
from launchers.slurm.node_health import ask, problem_here
from launchers.slurm.requeue_decision import Failure, LaunchHistory, Restart, ending_of
from launchers.slurm.supervisor import Supervisor, read_history
from pretrain.checkpoint import Checkpoint, set_aside
from pretrain.config import Config
from pretrain.run import Entry, JournalReader, RunFolder, report_failure
from tests.support.slurm_jobs import program, submission

pytestmark = pytest.mark.process  # shell scripts replace srun

HISTORY = LaunchHistory(7, checkpoint=400, restarts=2, requeues=1, failure=Failure(412, "x"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    RunFolder(tmp_path / "run").slurm.mkdir(parents=True)
    made = submission(tmp_path / "run", gpus_per_node=2, cpu=True)
    return with_cluster(made, health_seconds=3)  # less than a user can set


def with_cluster(config: Config, **values: Any) -> Config:
    return config.model_copy(update={"cluster": config.cluster.model_copy(update=values)})


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs are found first."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "bin"


def test_the_record_round_trips_for_its_own_job(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.json"
    assert read_history(path, 7) == LaunchHistory(7)
    for history in (HISTORY, LaunchHistory(7)):
        write_json(path, asdict(history))
        assert read_history(path, 7) == history
    write_json(path, asdict(HISTORY))
    assert read_history(path, 8) == LaunchHistory(8)


@pytest.fixture
def supervisor(config: Config, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """In this process, whose signals it handles until the test ends."""
    program(programs, "scontrol", "echo 'JobId=7 JobState=RUNNING Reason=None'")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    made = Supervisor(config, 7, ["n1", "n2"])
    made.run.create()
    return made


def test_another_number_of_nodes_is_refused(supervisor: Supervisor) -> None:
    supervisor.hosts = ("n1",)
    with pytest.raises(UserError, match=r"needs 2 nodes, and Slurm granted 1 \(n1\). Submit it with --nodes=2"):
        supervisor.supervise()


BEGIN, AGAIN = Restart(("n1", "n2"), 0.0, "to begin with"), Restart(("n1", "n2"), 0.01, "rank 1: x")


def test_who_is_asked_to_stop_before_the_start_does_not_start(supervisor: Supervisor) -> None:
    assert supervisor.wait_for_start(BEGIN) is None
    supervisor.run.ask_to_stop()
    outcome = supervisor.wait_for_start(BEGIN)
    assert (outcome.state, outcome.retry) == ("stopped", False)
    assert not supervisor.run.stop.exists()


def test_what_slurm_warns_of_before_the_start_is_left_to_the_ranks(supervisor: Supervisor) -> None:
    signal.raise_signal(signal.SIGUSR1)
    assert supervisor.wait_for_start(BEGIN) is None
    assert supervisor.run.stop.exists()
    assert not supervisor.run.is_asked_to_end()
    outcome = supervisor.wait_for_start(AGAIN)
    assert (outcome.state, outcome.retry, outcome.warned) == (None, True, True), "queued again, with no restart before"


def test_a_user_has_the_last_word(supervisor: Supervisor, tmp_path: Path) -> None:
    """Before a signal, after it, and while a restart waits."""
    signal.raise_signal(signal.SIGUSR1)
    supervisor.run.ask_to_stop()
    assert not supervisor.is_overdue(AttemptStatus(supervisor.run, tmp_path / "refusal"))
    supervisor.run.stop.unlink()  # by the ranks
    outcome = supervisor.outcome("stopped", "x", retry=True)
    assert (outcome.retry, outcome.warned) == (False, False)
    other = Supervisor(supervisor.config, 7, ["n1", "n2"])
    other.run.ask_to_stop()
    signal.raise_signal(signal.SIGTERM)
    assert other.run.is_asked_to_end()
    outcome = other.wait_for_start(AGAIN)
    assert (outcome.retry, outcome.warned) == (False, False)


def write_checkpoint(path: Path, step: int, rollbacks: list[Any]) -> None:
    path.mkdir()
    files = {"weights": {"bytes": 0, "xxh3_128": "0" * 32}}  # not read
    Checkpoint(path, step, {"guards": {"rollbacks": rollbacks}}, files).write()


@pytest.mark.parametrize(("rollbacks", "requeues"), [([{}], 0), ([], 2)])
def test_a_checkpoint_after_a_rollback_is_progress(supervisor: Supervisor, rollbacks: list, requeues: int) -> None:
    """Although the run had a later one before. Without a rollback it lost that one, maybe again and again."""
    folder = supervisor.run.checkpoints
    write_checkpoint(folder / "step-00000004", 4, [])
    history = LaunchHistory(7, supervisor.outcome("stopped", "x", retry=True).checkpoint, requeues=2)
    set_aside(folder, 0)
    assert history.seen(supervisor.outcome("stopped", "x", retry=True).checkpoint).requeues == 2
    write_checkpoint(folder / "step-00000001", 1, rollbacks)
    assert history.seen(supervisor.outcome("stopped", "x", retry=True).checkpoint).requeues == requeues
    (folder / "step-00000001" / "manifest.json").write_text("{}")
    assert history.seen(supervisor.outcome("stopped", "x", retry=True).checkpoint).requeues == 2, "it is damaged"


def test_a_completed_run_may_log_its_models(supervisor: Supervisor, tmp_path: Path) -> None:
    for state, overdue in (("failed", True), ("completed", False)):
        attempt = AttemptStatus(supervisor.run, tmp_path / "refusal")
        attempt.state, attempt.over_since = state, time.monotonic() - supervisor.leave_seconds - 200
        assert supervisor.is_overdue(attempt) == overdue, state


def test_a_node_that_can_write_the_run_folder_is_well(config: Config) -> None:
    assert problem_here(config) is None
    assert list(RunFolder(config.run.dir).slurm.iterdir()) == []
    shutil.rmtree(RunFolder(config.run.dir).slurm)
    assert problem_here(config) == f"cannot write to {RunFolder(config.run.dir).slurm} (No such file or directory)"


@pytest.mark.parametrize(
    "script, problem",
    [
        (None, None),  # without nvidia-smi, GPUs are not judged
        ("echo 0; echo 1; echo 2", None),
        ("echo 0", "1 of 2 GPUs in nvidia-smi"),
        ("echo 0; echo 1; exit 3", "2 of 2 GPUs in nvidia-smi"),
        ("echo 'No devices were found'", "0 of 2 GPUs in nvidia-smi"),
        ("exec sleep 9", "nvidia-smi did not answer within 1.5 s"),
    ],
)
def test_gpus_must_be_there(config, programs, monkeypatch, script, problem):
    if script is None:
        monkeypatch.setenv("PATH", str(programs))
    else:
        program(programs, "nvidia-smi", script)
    assert problem_here(with_cluster(config, cpu=False)) == problem


def test_each_node_is_asked_alone_and_in_time(config: Config, programs: Path) -> None:
    answers = """
case "$*" in
*--nodelist=n1*) echo noise; echo 'maskwright node: ';;
*--nodelist=n2*) echo 'maskwright node: has 1 of 2 GPUs';;
*--nodelist=n3*) exec sleep 60;;
*) echo 'srun: error: Requested nodes are down' >&2; exit 1;;
esac"""
    program(programs, "srun", answers)
    start = time.monotonic()
    assert ask(config, ["n1", "n2", "n3", "n4"]) == {
        "n2": "has 1 of 2 GPUs",
        "n3": "gave no answer within 3 s",
        "n4": "could not be asked (srun: error: Requested nodes are down)",
    }
    assert time.monotonic() - start < 30


ELEMENT = {"SLURM_JOB_ID": "5", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(("environment", "name"), [({"SLURM_JOB_ID": "5"}, "5"), (ELEMENT, "5_3")])
def test_a_requeue_is_of_this_job_alone_and_keeps_excluded_nodes(programs, tmp_path, monkeypatch, environment, name):
    """The last element of an array has the array's number. With it, scontrol would requeue the whole array."""
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    said = tmp_path / "said"
    script = f"""
echo "$@" >> {said}
case "$*" in *show*) echo 'JobId=5 JobState=RUNNING Reason=None ExcNodeList=n9';; esac
case "$1" in update) [ $(grep -c update {said}) -gt 2 ];; esac"""
    program(programs, "scontrol", script)
    assert client.requeue(["n1", "n2"]) is None
    shown, *changed = said.read_text().splitlines()
    assert shown == f"--oneliner show job {name}"
    assert changed == [f"requeue {name}"] + [f"update JobId={name} ExcNodeList=n9,n1,n2"] * 3
    program(programs, "scontrol", "echo 'Job is no longer pending' >&2; exit 1")
    assert client.requeue([]) == "Job is no longer pending"


def test_how_slurm_ends_a_job() -> None:
    for ending, reason in (("limit", "TimeLimit"), ("other", "None")):
        assert ending_of({"JobState": "COMPLETING", "Reason": reason}) == ending
        assert ending_of({"JobState": "RUNNING", "Reason": reason}) == "no"
    assert ending_of({}) == "no", "the controller does not answer"


def test_an_srun_that_does_not_end_is_ended(programs: Path, tmp_path: Path) -> None:
    words = ["sh", "-c", f"trap 'echo ended > {tmp_path}/ended; exit 9' TERM; while true; do sleep 0.05; done"]
    start = time.monotonic()
    late = run_step(words, {}, lambda: time.monotonic() - start > 1, lambda: False)
    assert late is None
    assert (tmp_path / "ended").exists()
    assert run_step(["sh", "-c", "exit 75"], {}, lambda: False, lambda: False) == 75


def test_the_status_of_this_attempt_is_told_from_the_one_before(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_status("stopped", 4, 9, "asked", "none")
    attempt = AttemptStatus(run, tmp_path / "refusal.json")
    assert attempt.seconds_over() == 0
    assert attempt.final(wait=False) is None
    assert attempt.refusal(1).reason == "training did not start (srun exit code 1)"
    assert attempt.refusal(1).retry
    time.sleep(0.01)
    run.write_status("running", 4, 9, "training", "none")
    words = attempt.final(wait=False)
    assert (words.state, words.retry) == ("failed", True)
    assert "without a word" in words.reason


def test_a_refusal_reaches_the_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "refusal.json"
    path.write_text('{"reason": "of an earlier attempt", "retry": true}')
    attempt = AttemptStatus(RunFolder(tmp_path), path)
    report_failure(None, "nobody listens", retry=False)
    assert not path.exists()
    monkeypatch.setenv("MASKWRIGHT_REFUSAL", str(path))
    report_failure(None, "data.train is gone", retry=False)
    assert (attempt.refusal(1).reason, attempt.refusal(1).retry) == ("data.train is gone", False)


def test_whose_process_holds_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    run = RunFolder(tmp_path)
    with run.lock():
        assert host_of(run.holder(), 12) == os.uname().nodename
        assert host_of(run.holder(), 1) is None
        assert run.is_held()
        run.break_lock()
        with run.lock():
            pass
    assert host_of("", 12) is None


def test_the_last_step_is_read_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert JournalReader(path).last_step() == -1
    lines = b"".join(Entry(step, 0.0, {"train/loss": 1.0}).to_line() for step in range(5000))
    path.write_bytes(lines + b'{"step": 6000, "ti')
    assert len(lines) > 1 << 16
    assert JournalReader(path).last_step() == 4999


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_somebody_listens_on_is_left_out(address: str) -> None:
    first = free_port(7)
    try:
        listener = socket.create_server((address, first), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError:
        pytest.skip(f"no {address} here")
    with listener:
        assert free_port(7) > first
    assert free_port(7) == first
