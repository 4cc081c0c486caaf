"""Supervisor of a training job, on its first node: `python -m launchers.slurm.supervisor CONFIG`.

It observes the ranks and carries out decisions. `requeue_decision` makes the decisions.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

from data_prep.common.errors import MissingFile, UserError
from data_prep.common.files import write_json
from data_prep.common.output import guard_output
from data_prep.common.processes import write_in_handler
from data_prep.common.reading import read_json, typed, unusable
from launchers.slurm import client, node_health
from launchers.slurm.launch_attempt import (
    HOSTS_VARIABLE,
    PORT_VARIABLE,
    AttemptStatus,
    free_port,
    host_of,
    run_step,
    train_command,
)
from launchers.slurm.requeue_decision import (
    End,
    LaunchHistory,
    Outcome,
    Requeue,
    Restart,
    ending_of,
    first_start,
    next_after,
)
from pretrain.checkpoint import committed, read
from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.run import REFUSAL_VARIABLE, JournalReader, RunFolder, State
from pretrain.tracking import ModelLogger

_MAX_RECORD_BYTES = 1 << 20
_POLL_SECONDS = 0.5
_HELD_SECONDS = 30.0  # for processes of an earlier start to release the run folder
_MESSAGE_SECONDS = 5.0  # for the last messages of this process, before Slurm kills it
_LEAVE_SECONDS = 120.0  # from the end of the run, by its status, until remaining ranks are killed


def read_history(path: Path, job_id: int) -> LaunchHistory:
    """Read the job's history from RUN/slurm/supervisor.json; empty if it is missing, damaged, or of another job."""
    try:
        values: dict[str, Any] = read_json(path, dict[str, Any], _MAX_RECORD_BYTES)
        if missing := [field.name for field in fields(LaunchHistory) if field.name not in values]:
            raise ValueError(f"it has no {missing[0]}")  # a default would forget what it counted
        history: LaunchHistory = typed(LaunchHistory, values)
    except MissingFile:
        return LaunchHistory(job_id)
    except (UserError, ValueError) as error:
        problem = error if isinstance(error, UserError) else unusable(path, str(error))
        print(f"warning: {problem} Counting restarts from 0.", flush=True)
        return LaunchHistory(job_id)
    return history if history.job_id == job_id else LaunchHistory(job_id)


class Supervisor:
    """Run the attempts of a job. A signal from Slurm becomes one request to save and stop."""

    def __init__(self, config: Config, job_id: int, hosts: Sequence[str]):
        self.cluster = config.cluster
        self.config, self.job_id, self.hosts = config, job_id, tuple(hosts)
        self.run = RunFolder(config.run.dir)
        self.leave_seconds = min(config.guard.hang_seconds or _LEAVE_SECONDS, _LEAVE_SECONDS)
        self.record = self.run.supervisor
        self.unrecorded: OSError | None = None
        self.warned_at: float | None = None  # time of the signal after which the run was asked to stop and requeue
        self.ended = False  # a user asked the run to stop
        self.terminated_at: float | None = None
        self.patience = 0.0  # seconds from SIGTERM to the last words
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def supervise(self) -> int:
        """Train. Returns the exit code of the job: 0 completed, 75 stopped with a checkpoint, 1 failed.

        Raises UserError if another job holds the run folder, or Slurm granted another number of nodes.
        """
        self._check_hosts()
        kill_wait = client.kill_wait()
        self.patience = max(kill_wait - _MESSAGE_SECONDS, kill_wait / 2)
        start = int(os.environ.get("SLURM_RESTART_COUNT", "0")) + 1
        self._say(f"start {start} on {' '.join(self.hosts)}")
        self._take_folder()
        if self.warned_at is None and not self.run.is_asked_to_end():
            self.run.stop.unlink(missing_ok=True)  # left by an earlier start, for that alone
        history = read_history(self.record, self.job_id).seen(self._checkpoint())
        if start > 1:
            history = replace(history, requeues=history.requeues + 1)
        decision = first_start(self.hosts, node_health.ask(self.config, self.hosts), history, self.cluster)
        while isinstance(decision, Restart):
            self._remember(history)
            outcome = self.wait_for_start(decision) or self._train(decision.hosts)
            problems = self._problems() if outcome.may_restart else {}
            decision, history = next_after(outcome, self.hosts, problems, history, self.cluster)
        self._remember(history)
        return self._requeue(decision) if isinstance(decision, Requeue) else self._end(decision)

    def _check_hosts(self) -> None:
        """Raise UserError if Slurm granted another number of nodes, for example after sbatch with --nodes."""
        nodes, hosts = self.cluster.nodes + self.cluster.spare_nodes, self.hosts
        if len(hosts) != nodes:
            raise UserError(
                f"This job needs {nodes} nodes, and Slurm granted {len(hosts)} ({', '.join(hosts) or 'none'}). Submit "
                f"it with --nodes={nodes}."
            )

    def wait_for_start(self, restart: Restart) -> Outcome | None:
        """Pause before a restart. Returns an outcome if the job must end instead.

        A warning at the first start is left to the ranks: they make one step, so that there is progress.
        """
        if restart.pause:
            self._say(f"{restart.reason}; starts again on {' '.join(restart.hosts)} in {restart.pause:.0f} s")
            self._tell("failed", restart.reason, f"none: job {self.job_id} starts it again")
        until = time.monotonic() + restart.pause
        while time.monotonic() < until and not self.run.stop.exists():
            time.sleep(_POLL_SECONDS)
        self._look_for_end()
        if not (self.ended or (restart.pause and self.run.stop.exists())):
            return None
        self.run.stop.unlink(missing_ok=True)
        if not restart.pause:
            return self.outcome("stopped", "asked to stop before it had begun", retry=False)
        return self.outcome(None, f"asked to stop, after it had failed ({restart.reason})", retry=True)

    def _train(self, hosts: tuple[str, ...]) -> Outcome:
        """Run one attempt until its ranks exit."""
        self._take_folder()
        port = free_port(self.job_id)
        refusal = self.run.slurm / f"refusal-{self.job_id}.json"
        attempt = AttemptStatus(self.run, refusal)
        self._say(f"trains on {' '.join(hosts)}, rank 0 at {hosts[0]}:{port}")
        code = run_step(
            train_command(self.config, hosts),
            {HOSTS_VARIABLE: " ".join(hosts), PORT_VARIABLE: str(port), REFUSAL_VARIABLE: str(refusal)},
            is_overdue=lambda: self.is_overdue(attempt),
            is_too_late=self._is_too_late,
        )
        status = attempt.final(wait=not self._is_too_late())
        if status is None:
            refused = attempt.refusal(code)
            return replace(self.outcome(None, refused.reason, refused.retry), hosts=hosts)
        said = "srun did not end" if code is None else f"srun exit code {code}"
        if self.warned_at is not None:
            said += f", {(attempt.over_since or time.monotonic()) - self.warned_at:.1f} s after Slurm's warning"
        self._say(f"{status.state} at step {status.step}: {status.reason} ({said})")
        return replace(self.outcome(status.state, status.reason, status.retry), hosts=hosts)

    def is_overdue(self, attempt: AttemptStatus) -> bool:
        """Whether ranks still run long after the run is over. A completed run may still log models."""
        self._look_for_end()  # the ranks take the request away
        models = ModelLogger.LAST_SECONDS if attempt.state == "completed" else 0.0
        return attempt.seconds_over() > self.leave_seconds + models

    def _look_for_end(self) -> None:
        self.ended = self.ended or self.run.is_asked_to_end()

    def outcome(self, state: State | None, reason: str, retry: bool) -> Outcome:
        """Outcome of an attempt that ends now. A request of the user to stop forbids another start."""
        ending = ending_of(client.own_fields())
        at, warned = JournalReader(self.run.journal).last_step(), self.warned_at is not None
        return Outcome(
            state, reason, retry and not self.ended, at, self._checkpoint(), warned and not self.ended, ending
        )

    def _problems(self) -> dict[str, str]:
        """The problems of unhealthy hosts, after a failure."""
        problems = node_health.ask(self.config, self.hosts)
        host = host_of(self.run.holder(), self.job_id) if self.run.is_held() else None
        if host in self.hosts:
            problems.setdefault(host, "has a process that cannot be killed")
        return problems

    def _end(self, end: End) -> int:
        if end.state == "completed":
            self._say("the run is complete")
            return 0
        failed = end.state == "failed"
        action = "fix the cause, then submit the run again" if failed else "submit the run again to resume"
        self._tell(end.state, end.reason, action)
        self._say(f"{end.state}: {end.reason}; {action}")
        return 1 if failed else 75

    def _requeue(self, decision: Requeue) -> int:
        if self.unrecorded:  # otherwise it could requeue forever
            why = f"{self.record} cannot be written ({self.unrecorded.strerror})"
            return self._end(End("failed", f"{decision.reason}; {why}"))
        without = f" without {', '.join(decision.exclude)}" if decision.exclude else ""
        self._tell(None, decision.reason, f"none: Slurm starts job {self.job_id} again")
        for number in (signal.SIGUSR1, signal.SIGTERM):  # Slurm sends it for the requeue
            signal.signal(number, signal.SIG_IGN)
        self._say(f"{decision.reason}; requeued to continue{without}")
        problem = client.requeue(decision.exclude)
        if problem:
            return self._end(End("failed", f"{decision.reason}; it could not be requeued ({problem})"))
        if not self.run.is_asked_to_end():
            self.run.stop.unlink(missing_ok=True)
        return 75

    def _take_folder(self) -> None:
        """Wait until no process trains in the run folder.

        Processes of earlier starts of this job get time to exit. A process that remains was on a lost machine, and its
        lock is broken.
        """
        self.run.create()
        deadline = time.monotonic() + _HELD_SECONDS
        while True:
            try:
                self.run.lock(stopping_seconds=0).close()
                return
            except UserError:
                if host_of(self.run.holder(), self.job_id) is None:
                    raise
            if time.monotonic() > deadline:
                self._say(f"the run folder is still held by {self.run.holder()}, which is lost")
                self.run.break_lock()
            time.sleep(_POLL_SECONDS)

    def _tell(self, state: State | None, reason: str, action: str) -> None:
        """Write status.json, unless the run is complete or another job holds the folder. None keeps the state."""
        if self.run.is_held() and host_of(self.run.holder(), self.job_id) is None:
            return
        old = self.run.status_or_none()
        was: State = old.state if old and old.is_over else "failed"
        steps = [step for step, _ in committed(self.run.checkpoints)]
        done, total = (old.step, old.total_steps) if old else (max(steps, default=0), 0)
        if was == "completed":
            return
        try:
            self.run.write_status(state or was, done, total, reason, action)
        except OSError as error:
            self._say(f"{self.run.status} was not written ({error.strerror})")

    def _remember(self, history: LaunchHistory) -> None:
        try:
            write_json(self.record, asdict(history))
            self.unrecorded = None
        except OSError as error:
            self.unrecorded = error

    def _checkpoint(self) -> int:
        """The step of the newest checkpoint, or -1, and train.steps more for each rollback of the guards before it."""
        for step, path in committed(self.run.checkpoints)[:1]:
            with contextlib.suppress(UserError, KeyError, TypeError):  # it is damaged
                return step + self.config.train.steps * len(read(path).state["guards"]["rollbacks"])
            return step
        return -1

    def _is_too_late(self) -> bool:
        """Whether Slurm is about to kill this process."""
        if self.terminated_at is None or time.monotonic() - self.terminated_at < self.patience:
            return False
        if ending_of(client.own_fields()) == "no":
            self.terminated_at = None  # only a signal, without a deadline
        return self.terminated_at is not None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.terminated_at = time.monotonic()
        if self.warned_at is not None or self.run.stop.exists():  # asked already, maybe by the user
            return
        self.warned_at = time.monotonic()
        said = f"job {self.job_id}: received {signal.Signals(number).name}, asks the run to save and stop"
        try:
            self.run.ask_to_pause()
        except OSError as error:
            said += f"; {self.run.stop} was not written ({error.strerror})"
        write_in_handler(said, descriptor=1)

    def _say(self, line: str) -> None:
        print(f"job {self.job_id}: {line}", flush=True)


def main(arguments: list[str]) -> int:
    """Supervise the job. If it cannot start, print one line and return 1."""
    guard_output(has_result=False)
    try:
        config = load_config(Path(arguments[0]))
        return Supervisor(config, int(os.environ["SLURM_JOB_ID"]), client.allocated_hosts()).supervise()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
