"""What happens next to a Slurm job whose ranks have ended: a pure function of what is seen and remembered."""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pretrain.run import State

Ending = Literal["no", "limit", "other"]
"""Whether Slurm ends the job: no; at its time limit; or cancelled, preempted or without a node, and Slurm knows what
comes next."""

_LONGEST_PAUSE = 300.0  # seconds
_SHARE = 0.5
"""Of the time that Slurm leaves, which a checkpoint should not exceed: storage may be busier the next time."""


@dataclass(frozen=True)
class Saving:
    """One checkpoint on Slurm's warning.

    Args:
        seconds: from the warning to the end of the run with its checkpoint; without one, until Slurm ended the job.
        lead: seconds that the warning comes before the time limit (cluster.signal_seconds); None for SIGTERM, as at a
            preemption, after which the site decides how long it waits.
        is_saved: whether there was a checkpoint in time.
    """

    seconds: float
    lead: int | None
    is_saved: bool

    @property
    def wanted(self) -> int | None:
        """A lead that would be enough, in whole minutes; None if this one is, or none can be chosen."""
        if self.lead is None or (self.is_saved and self.seconds <= _SHARE * self.lead):
            return None
        return 60 * math.ceil(self.seconds / _SHARE / 60)

    @property
    def sentence(self) -> str:
        """What was measured, and what to do if it was too much."""
        said = f"{self.seconds:.1f} s from Slurm's warning to the checkpoint"
        if not self.is_saved:
            said = f"no checkpoint {self.seconds:.1f} s after Slurm's warning"
        if self.lead is not None:
            said += f"; the warning comes {self.lead} s before the time limit"
        if self.wanted is None:
            return said
        return (
            f"{said}, which is {'tight' if self.is_saved else 'too late'}: submit with --signal-seconds {self.wanted}"
        )


@dataclass(frozen=True)
class Limits:
    """How often a job may start again without progress, which is a newer committed checkpoint.

    Args:
        nodes: on how many it trains.
        max_restarts: on the same allocation, after failures.
        requeue: whether the job may be queued again at all.
        max_requeues: how often, whoever asked for it.
        pause_seconds: before the first restart; doubled for each further one.
    """

    nodes: int
    max_restarts: int
    requeue: bool
    max_requeues: int
    pause_seconds: float


@dataclass(frozen=True)
class Failure:
    """At which step, by the journal, and why."""

    step: int
    reason: str

    def is_like(self, other: "Failure | None") -> bool:
        """Whether it is the same error: ports, process ids and addresses may differ."""
        return other is not None and self.step == other.step and _shape(self.reason) == _shape(other.reason)


@dataclass(frozen=True)
class LaunchHistory:
    """What a job remembers over restarts and requeues: the newest checkpoint, what has happened since, and how long
    the last checkpoint took for which Slurm left little time."""

    job_id: int
    checkpoint: int | Literal[-1] = -1
    restarts: int = 0
    requeues: int = 0
    failure: Failure | None = None
    saving: Saving | None = None

    def seen(self, checkpoint: int) -> "LaunchHistory":
        """After a look at the newest committed checkpoint: a newer one makes all good."""
        return LaunchHistory(self.job_id, checkpoint, saving=self.saving) if checkpoint > self.checkpoint else self


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Args:
        state: by status.json; None if the attempt never wrote one.
        reason: by status.json, or why it never began.
        retry: whether another start may mend it, or whoever stopped the run wants it to go on.
        step: the journal's last.
        checkpoint: the newest committed step, -1 for none.
        warned: Slurm has announced the end of the job, and the supervisor has asked the run to stop.
        ending: see Ending.
        hosts: where it ran.
        saving: if it was warned, how long the checkpoint took.
    """

    state: State | None
    reason: str
    retry: bool
    step: int
    checkpoint: int
    warned: bool = False
    ending: Ending = "no"
    hosts: tuple[str, ...] = ()
    saving: Saving | None = None


@dataclass(frozen=True)
class Complete:
    """The run has all its steps."""


@dataclass(frozen=True)
class Restart:
    """Train on these hosts, after a pause in seconds."""

    hosts: tuple[str, ...]
    pause: float
    reason: str


@dataclass(frozen=True)
class Requeue:
    """Queue the job again, without these nodes."""

    exclude: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Stop:
    """End the job; the run has a checkpoint of its last step."""

    reason: str


@dataclass(frozen=True)
class Fail:
    """End the job."""

    reason: str


Decision = Complete | Restart | Requeue | Stop | Fail


def ending_of(fields: dict[str, str]) -> Ending:
    """Whether Slurm ends the job already, and why."""
    if fields.get("JobState", "RUNNING") == "RUNNING":
        return "no"
    return "limit" if fields.get("Reason") == "TimeLimit" else "other"


def next_after(
    outcome: Outcome, hosts: Sequence[str], problems: Mapping[str, str], history: LaunchHistory, limits: Limits
) -> tuple[Decision, LaunchHistory]:
    """What to do after an attempt, and what to remember.

    Args:
        hosts: those of the allocation, in its order.
        problems: what ails those of them that are ill.
        history: up to this attempt.
    """
    history = history.seen(outcome.checkpoint)
    if outcome.state == "completed":
        return Complete(), history
    if outcome.ending == "other":
        ended = f"Slurm ended the job ({outcome.reason})"
        return (Stop(ended) if outcome.state == "stopped" else Fail(ended)), history
    if outcome.state == "stopped":
        if not (outcome.retry or outcome.warned):
            return Stop(outcome.reason), history
        return _requeue((), "stopped with a checkpoint before Slurm ends the job", history, limits, Stop)
    if not outcome.retry:
        return Fail(outcome.reason), history
    if outcome.ending == "limit" or outcome.warned:
        return _requeue((), f"no checkpoint in the time that Slurm left ({outcome.reason})", history, limits, Fail)
    return _after_failure(outcome, hosts, problems, history, limits)


def first_start(
    hosts: Sequence[str], problems: Mapping[str, str], history: LaunchHistory, limits: Limits
) -> tuple[Decision, LaunchHistory]:
    """Where to train to begin with, and what to remember."""
    healthy = tuple(host for host in hosts if host not in problems)[: limits.nodes]
    if history.requeues > limits.max_requeues:
        return Fail(f"started again {history.requeues} times without a new checkpoint"), history
    if len(healthy) == limits.nodes:
        return Restart(healthy, 0.0, "to begin with"), history
    return _without(hosts, problems, _named(problems), history, limits)


def _after_failure(
    outcome: Outcome, hosts: Sequence[str], problems: Mapping[str, str], history: LaunchHistory, limits: Limits
) -> tuple[Decision, LaunchHistory]:
    failure = Failure(outcome.step, outcome.reason)
    ill = _named({host: problem for host, problem in problems.items() if host in outcome.hosts})
    # A node that is ill explains an error, and without it things may go better.
    if not ill and failure.is_like(history.failure):
        return Fail(f"the same error twice, with no checkpoint in between: {outcome.reason}"), history
    if history.restarts >= limits.max_restarts:
        again = f"{history.restarts} restarts without a new checkpoint" if history.restarts else "no restart is allowed"
        return Fail(f"{outcome.reason} ({again})"), history
    history = replace(history, restarts=history.restarts + 1, failure=failure)
    healthy = tuple(host for host in hosts if host not in problems)[: limits.nodes]
    if len(healthy) < limits.nodes:
        return _without(hosts, problems, f"{_named(problems)}; {outcome.reason}", history, limits)
    why = f"{ill}; {outcome.reason}" if ill else outcome.reason
    return Restart(healthy, pause(history, limits.pause_seconds), why), history


def _without(
    hosts: Sequence[str], problems: Mapping[str, str], reason: str, history: LaunchHistory, limits: Limits
) -> tuple[Decision, LaunchHistory]:
    """To the queue, for other nodes. Where all of several are ill, others hardly are better, and would run out."""
    if len(hosts) > 1 and len(problems) == len(hosts):
        return Fail(reason), history
    return _requeue(tuple(problems), reason, history, limits, Fail)


def _requeue(
    exclude: tuple[str, ...], reason: str, history: LaunchHistory, limits: Limits, otherwise: type[Stop] | type[Fail]
) -> tuple[Decision, LaunchHistory]:
    """To the queue if that may be; the next start counts it."""
    if not limits.requeue:
        return otherwise(f"{reason}; the job may not be queued again (cluster.requeue)"), history
    if history.requeues >= limits.max_requeues:
        again = f"{reason}; {history.requeues} starts without a new checkpoint are enough"
        return otherwise(again), history
    return Requeue(exclude, reason), history


def pause(history: LaunchHistory, first: float) -> float:
    """Seconds before a restart: doubled each time, up to 5 minutes, a quarter more or less by the job's id, so that
    jobs that failed together do not come back together."""
    chance = random.Random(f"{history.job_id} {history.restarts}")
    return min(first * 2.0 ** (history.restarts - 1), _LONGEST_PAUSE) * chance.uniform(0.75, 1.25)


def _named(problems: Mapping[str, str]) -> str:
    return ", ".join(f"node {host}: {problem}" for host, problem in problems.items())


def _shape(reason: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+", "#", reason)
