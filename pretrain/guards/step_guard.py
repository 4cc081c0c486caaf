"""Check each step of a run: warn, roll back, or end the run. All ranks reach the same decision.

The history of the checks is stored in each checkpoint, so a resumed run decides like an uninterrupted one.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from data_prep.common.errors import UserError
from pretrain.config import GuardConfig
from pretrain.data import MixturePosition
from pretrain.guards.slow_ranks import StepTimes

_NORMAL = 1.4826  # standard deviation of normal noise, divided by its median absolute deviation
_LEAST = 0.01  # least deviation, as a share of the median, for losses that hardly vary


class EndOfRun(UserError):
    """Raised on every rank at the same step, where all can still take part in a collective."""


@dataclass(frozen=True)
class StreamPoint:
    """A step, and the position in the stream where its batch begins."""

    step: int
    position: MixturePosition


@dataclass(frozen=True)
class Rollback:
    """A rollback from the spike that began at step `spike` to step `to`, and the rows that it left out.

    Rows are counted over the whole stream. The range is `first_row` (included) to `next_row` (excluded).
    """

    spike: int
    to: int
    first_row: int
    next_row: int

    def __str__(self) -> str:
        return f"from the spike at step {self.spike} to step {self.to}, rows {self.first_row} to {self.next_row - 1}"


@dataclass(frozen=True)
class GuardHistory:
    """Skipped steps, recent losses and rollbacks of a run.

    skipped: the number of skipped steps. skipped_in_row: the latest steps, if they were skipped.
    losses: the latest finite losses, of batches of `shape` (rows, sequence length) and of `settings`, see StepResult.
    spike: the first step of the current spike; None if the last loss is below the threshold.
    above: the number of steps of the current spike.
    rollbacks: all rollbacks, oldest first.
    """

    skipped: int = 0
    skipped_in_row: tuple[StreamPoint, ...] = ()
    losses: tuple[float, ...] = ()
    shape: tuple[int, int] = (0, 0)
    spike: StreamPoint | None = None
    above: int = 0
    rollbacks: tuple[Rollback, ...] = ()
    settings: str = ""

    def __str__(self) -> str:
        """A text for messages: "; 2 steps skipped; 1 rollback, the last one from ..."; empty if nothing happened."""
        parts = [f"; {self.skipped} {'step' if self.skipped == 1 else 'steps'} skipped"] if self.skipped else []
        if number := len(self.rollbacks):
            last = self.rollbacks[-1]
            parts.append(f"; {number} rollback{'s' if number > 1 else ''}, the last one {last} left out")
        return "".join(parts)


@dataclass(frozen=True)
class StepResult:
    """The result of a step.

    position: where its batch begins. shape: rows and sequence length of its batch.
    skipped: whether the optimizer skipped the step, because loss or gradients were not finite.
    compute_seconds: of each rank, before it first waited for other ranks.
    waited: seconds that this rank waited for data, out of `seconds`.
    host_behind: the GPU had nothing left to do of earlier steps when the host had started all kernels of this one.
    settings: digest of data, objective and masking.
    """

    step: int
    position: MixturePosition
    shape: tuple[int, int]
    loss: float
    skipped: bool
    compute_seconds: Sequence[float]
    waited: float
    seconds: float
    host_behind: bool
    settings: str = ""

    @property
    def point(self) -> StreamPoint:
        """The step, and where its batch begins."""
        return StreamPoint(self.step, self.position)


def after_step(history: GuardHistory, result: StepResult, guard: GuardConfig) -> GuardHistory:
    """Add one step to the history. Losses are compared only between batches of the same shape and settings."""
    if result.skipped or not math.isfinite(result.loss):
        in_row = (*history.skipped_in_row, result.point)[-guard.max_skipped :]
        return replace(history, skipped=history.skipped + 1, skipped_in_row=in_row)
    if (result.shape, result.settings) != (history.shape, history.settings):
        history = replace(history, losses=(), shape=result.shape, settings=result.settings, spike=None, above=0)
    high = (
        guard.spike_threshold > 0
        and len(history.losses) >= guard.spike_window
        and result.loss > _spike_threshold(history.losses, guard.spike_threshold)
    )
    return replace(
        history,
        skipped_in_row=(),
        losses=(*history.losses, result.loss)[-guard.spike_window :],
        spike=(history.spike or result.point) if high else None,
        above=history.above + 1 if high else 0,
    )


def _spike_threshold(losses: tuple[float, ...], deviations: float) -> float:
    """The loss above which a spike begins: `deviations` robust standard deviations above the median of `losses`."""
    middle = median(losses)
    spread = _NORMAL * median(abs(loss - middle) for loss in losses)
    return middle + deviations * max(spread, _LEAST * abs(middle))


def rollback_due(history: GuardHistory, guard: GuardConfig) -> bool:
    """Whether to roll back: the spike has lasted guard.spike_steps, and guard.max_rollbacks is not reached."""
    return guard.rollback and history.above == guard.spike_steps and len(history.rollbacks) < guard.max_rollbacks


class StepGuard:
    """Checks every step, in order.

    Args:
        run: the run folder.
        history: the history of the earlier steps.
        hosts: the host of each rank.
        prints: whether this rank prints the warnings.
    """

    def __init__(self, guard: GuardConfig, run: Path, history: GuardHistory, hosts: Sequence[str], prints: bool):
        self.history, self.rollback_due = history, False
        self._guard, self._run, self._prints = guard, run, prints
        self._times = StepTimes(hosts, guard.slow_factor, guard.data_wait)

    def record(self, result: StepResult) -> dict[str, float]:
        """Add a step, and return its additional metrics for the journal."""
        before, step = self.history, result.step
        if not self.rollback_due:  # the rollback discards later steps
            self.history = after_step(before, result, self._guard)
        for warning in self._times.record(result.compute_seconds, result.waited, result.seconds, result.host_behind):
            self._warn(warning)
        if result.skipped:
            self._warn(f"step {step} was skipped: its loss or gradients are not finite")
            return {"train/skipped": 1.0}
        self.rollback_due = rollback_due(self.history, self._guard)
        if self.history.spike and not before.spike:
            self._warn(
                f"step {step} has a loss of {result.loss:.4g}, far above those before it (guard.spike_threshold); "
                f"for its batch: maskwright replay {self._run} --step {step}"
            )
            return {"train/spike": 1.0}
        return {}

    def check(self) -> None:
        """Raise EndOfRun, on every rank, if the last guard.max_skipped steps were skipped."""
        skipped = self.history.skipped_in_row
        if len(skipped) < self._guard.max_skipped:
            return
        steps = ", ".join(f"{point.step} (from row {point.position.dealt} on)" for point in skipped)
        raise EndOfRun(
            f"loss or gradients were not finite in {len(skipped)} steps in a row (guard.max_skipped), which were "
            f"skipped: {steps}; for a batch: maskwright replay {self._run} --step {skipped[0].step}. Lower optim.lr or "
            "lengthen schedule.warmup_steps, and go on from the last checkpoint with run.allow_changes=true"
        )

    def _warn(self, warning: str) -> None:
        if self._prints:
            print(f"warning: {warning}", file=sys.stderr, flush=True)
