"""Check each step of a run: warn, roll back, or end the run. All ranks reach the same decision."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pretrain.config import GuardConfig
from pretrain.distributed import EndOfRun
from pretrain.guards.guard_history import GuardHistory, StreamPoint
from pretrain.guards.loss_spikes import after_step, rollback_due
from pretrain.guards.slow_ranks import Pace


@dataclass(frozen=True)
class StepResult:
    """The result of a step.

    shape: rows and sequence length of its batch.
    skipped: whether the optimizer skipped the step, because loss or gradients were not finite.
    own: seconds that each rank computed before it first waited for other ranks.
    waited: seconds that this rank waited for data, out of `seconds`.
    """

    place: StreamPoint
    shape: tuple[int, int]
    loss: float
    skipped: bool
    own: Sequence[float]
    waited: float
    seconds: float


class StepGuard:
    """Checks every step, in order.

    Args:
        run: the run folder.
        history: the history of the earlier steps.
        hosts: the host of each rank.
        speaks: whether this rank prints the warnings.
    """

    def __init__(self, guard: GuardConfig, run: Path, history: GuardHistory, hosts: Sequence[str], speaks: bool):
        self.history, self.rollback_due = history, False
        self._guard, self._run, self._speaks = guard, run, speaks
        self._pace = Pace(hosts, guard.slow_factor, guard.data_wait)

    def record(self, step: StepResult) -> dict[str, float]:
        """Add a step, and return its additional metrics for the journal."""
        before = self.history
        if not self.rollback_due:  # the rollback discards later steps
            self.history = after_step(before, step.place, step.loss, step.skipped, step.shape, self._guard)
        for warning in self._pace.record(step.own, step.waited, step.seconds):
            self._say(warning)
        if step.skipped:
            self._say(f"step {step.place.step} was skipped: its loss or gradients are not finite")
            return {"train/skipped": 1.0}
        self.rollback_due = rollback_due(self.history, self._guard)
        if self.history.spike and not before.spike:
            self._say(
                f"step {step.place.step} has a loss of {step.loss:.4g}, far above those before it "
                f"(guard.spike_threshold); for its batch: maskwright replay {self._run} --step {step.place.step}"
            )
            return {"train/spike": 1.0}
        return {}

    def check(self) -> None:
        """End a run whose steps are all skipped.

        Raises:
            EndOfRun: on every rank.
        """
        skipped = self.history.skipped_in_row
        if len(skipped) < self._guard.max_skipped:
            return
        steps = ", ".join(f"{place.step} (from row {place.position.dealt} on)" for place in skipped)
        raise EndOfRun(
            f"loss or gradients were not finite in {len(skipped)} steps in a row (guard.max_skipped), which were "
            f"skipped: {steps}; for a batch: maskwright replay {self._run} --step {skipped[0].step}. Lower optim.lr or "
            "lengthen schedule.warmup_steps, and go on from the last checkpoint with run.allow_changes=true"
        )

    def _say(self, warning: str) -> None:
        if self._speaks:
            print(f"warning: {warning}", file=sys.stderr, flush=True)
