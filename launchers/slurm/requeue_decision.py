"""Decision after an attempt of a Slurm job: restart, requeue, stop or fail. A pure function of outcome and history."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pretrain.config import ClusterConfig
from pretrain.run import State

Ending = Literal["no", "limit", "other"]
"""Whether Slurm ends the job: no; at the time limit; or by a cancellation, a preemption or a lost node, after which
Slurm itself decides about a requeue."""

_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 300.0  # seconds


@dataclass(frozen=True)
class Failure:
    """Last step in the journal, and reason of a failure."""

    step: int
    reason: str

    def is_like(self, other: "Failure | None") -> bool:
        """Whether it is the same error. Ports, process ids and addresses may differ."""
        return other is not None and self.step == other.step and _shape(self.reason) == _shape(other.reason)


@dataclass(frozen=True)
class LaunchHistory:
    """State of a job that survives restarts and requeues: the newest checkpoint, and the events since then."""

    job_id: int
    checkpoint: int | Literal[-1] = -1
    restarts: int = 0
    requeues: int = 0
    failure: Failure | None = None

    def seen(self, checkpoint: int) -> "LaunchHistory":
        """Update with the newest committed checkpoint. A newer one resets the counts."""
        return LaunchHistory(self.job_id, checkpoint) if checkpoint > self.checkpoint else self


@dataclass(frozen=True)
class Outcome:
    """Outcome of an attempt.

    Args:
        state: state in status.json; None if the attempt did not write it.
        reason: reason in status.json, or why the attempt never started.
        retry: whether another start may help, or the stop was meant to be temporary.
        step: last step of the journal.
        checkpoint: newest committed step, -1 for none; after each rollback it counts on from the end of the run.
        warned: whether Slurm announced the end of the job, and the supervisor asked the run to stop.
        ending: see Ending.
        hosts: hosts of the attempt.
    """

    state: State | None
    reason: str
    retry: bool
    step: int
    checkpoint: int
    warned: bool = False
    ending: Ending = "no"
    hosts: tuple[str, ...] = ()

    @property
    def may_restart(self) -> bool:
        """Whether a restart on the same allocation is possible."""
        is_failed = self.state not in ("completed", "stopped")
        return is_failed and self.retry and self.ending == "no" and not self.warned


@dataclass(frozen=True)
class Restart:
    """Train on these hosts, after a pause in seconds."""

    hosts: tuple[str, ...]
    pause: float
    reason: str


@dataclass(frozen=True)
class Requeue:
    """Requeue the job, and exclude these nodes."""

    exclude: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class End:
    """End the job. A stopped run has a checkpoint of its last step."""

    state: Literal["completed", "stopped", "failed"]
    reason: str


Decision = Restart | Requeue | End


def ending_of(fields: dict[str, str]) -> Ending:
    """Whether Slurm is already ending the job, and the reason."""
    if fields.get("JobState", "RUNNING") == "RUNNING":
        return "no"
    return "limit" if fields.get("Reason") == "TimeLimit" else "other"


def next_after(
    outcome: Outcome, hosts: Sequence[str], problems: Mapping[str, str], history: LaunchHistory, cluster: ClusterConfig
) -> tuple[Decision, LaunchHistory]:
    """Decide after an attempt. Returns the decision and the updated history.

    Without a newer committed checkpoint, restarts on this allocation and requeues have limits.

    Args:
        hosts: hosts of the allocation, in its order.
        problems: problem of each unhealthy host.
        history: history before this attempt.
        cluster: number of nodes, and the limits.
    """
    history = history.seen(outcome.checkpoint)
    if outcome.may_restart:
        return _after_failure(outcome, hosts, problems, history, cluster)
    return _after_end(outcome, history, cluster), history


def first_start(
    hosts: Sequence[str], problems: Mapping[str, str], history: LaunchHistory, cluster: ClusterConfig
) -> Decision:
    """Decide about the first start."""
    if history.requeues > cluster.max_requeues:
        return End("failed", f"started again {history.requeues} times without a new checkpoint")
    if healthy := _healthy(hosts, problems, cluster.nodes):
        return Restart(healthy, 0.0, "to begin with")
    return _without(hosts, problems, _named(problems), history, cluster)


def _after_end(outcome: Outcome, history: LaunchHistory, cluster: ClusterConfig) -> Decision:
    """Decide where a restart on this allocation is no option."""
    if outcome.state == "completed":
        return End("completed", outcome.reason)
    if outcome.ending == "other":
        ended = f"Slurm ended the job ({outcome.reason})"
        return End("stopped" if outcome.state == "stopped" else "failed", ended)
    if outcome.state == "stopped":
        if not (outcome.retry or outcome.warned):
            return End("stopped", outcome.reason)
        return _requeue((), "stopped with a checkpoint before Slurm ends the job", history, cluster, "stopped")
    if not outcome.retry:
        return End("failed", outcome.reason)
    late = (
        f"no checkpoint in the time that Slurm left, so submit with a larger cluster.signal_seconds ({outcome.reason})"
    )
    return _requeue((), late, history, cluster, "failed")


def _after_failure(
    outcome: Outcome, hosts: Sequence[str], problems: Mapping[str, str], history: LaunchHistory, cluster: ClusterConfig
) -> tuple[Decision, LaunchHistory]:
    failure = Failure(outcome.step, outcome.reason)
    unhealthy = _named({host: problem for host, problem in problems.items() if host in outcome.hosts})
    # An unhealthy node explains the error; a start without it may succeed.
    if not unhealthy and failure.is_like(history.failure):
        return End("failed", f"the same error twice, with no checkpoint in between: {outcome.reason}"), history
    if history.restarts >= cluster.max_restarts:
        again = f"{history.restarts} restarts without a new checkpoint" if history.restarts else "no restart is allowed"
        return End("failed", f"{outcome.reason} ({again})"), history
    history = replace(history, restarts=history.restarts + 1, failure=failure)
    if healthy := _healthy(hosts, problems, cluster.nodes):
        why = f"{unhealthy}; {outcome.reason}" if unhealthy else outcome.reason
        return Restart(healthy, pause(history), why), history
    return _without(hosts, problems, f"{_named(problems)}; {outcome.reason}", history, cluster), history


def _healthy(hosts: Sequence[str], problems: Mapping[str, str], nodes: int) -> tuple[str, ...]:
    """The first healthy hosts; empty if they are too few."""
    healthy = tuple(host for host in hosts if host not in problems)[:nodes]
    return healthy if len(healthy) == nodes else ()


def _without(
    hosts: Sequence[str], problems: Mapping[str, str], reason: str, history: LaunchHistory, cluster: ClusterConfig
) -> Decision:
    """Requeue for other nodes. Fail if all of several nodes are unhealthy: other nodes would hardly be better."""
    if len(hosts) > 1 and len(problems) == len(hosts):
        return End("failed", reason)
    return _requeue(tuple(problems), reason, history, cluster, "failed")


def _requeue(
    exclude: tuple[str, ...],
    reason: str,
    history: LaunchHistory,
    cluster: ClusterConfig,
    otherwise: Literal["stopped", "failed"],
) -> Decision:
    """Requeue if the limits allow it. The next start counts it."""
    if not cluster.requeue:
        return End(otherwise, f"{reason}; the job may not be queued again (cluster.requeue)")
    if history.requeues >= cluster.max_requeues:
        return End(otherwise, f"{reason}; {history.requeues} starts without a new checkpoint are enough")
    return Requeue(exclude, reason)


def pause(history: LaunchHistory) -> float:
    """Seconds before a restart: doubled each time, up to 5 minutes, and varied by up to a quarter by the job's id, so
    that jobs that failed together do not restart together."""
    chance = random.Random(f"{history.job_id} {history.restarts}")
    return min(_FIRST_PAUSE * 2.0 ** (history.restarts - 1), _LONGEST_PAUSE) * chance.uniform(0.75, 1.25)


def _named(problems: Mapping[str, str]) -> str:
    return ", ".join(f"node {host}: {problem}" for host, problem in problems.items())


def _shape(reason: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+", "#", reason)
