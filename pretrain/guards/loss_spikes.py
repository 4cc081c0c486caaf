"""What the steps so far say: too many that are not finite, or a loss far above the recent ones. Pure functions."""

import math
from dataclasses import replace
from statistics import median

from pretrain.config import GuardConfig
from pretrain.guards.guard_history import GuardHistory, StreamPoint

_NORMAL = 1.4826  # by which the median absolute deviation of normal noise becomes its standard deviation
_LEAST = 0.01  # of the median: where losses hardly vary, a deviation counts as this much at least


def spike_threshold(losses: tuple[float, ...], deviations: float) -> float:
    """The loss above which a spike begins: so many robust standard deviations above the median of recent losses."""
    middle = median(losses)
    spread = _NORMAL * median(abs(loss - middle) for loss in losses)
    return middle + deviations * max(spread, _LEAST * abs(middle))


def after_step(
    history: GuardHistory, place: StreamPoint, loss: float, skipped: bool, shape: tuple[int, int], guard: GuardConfig
) -> GuardHistory:
    """The history with one step more.

    Args:
        loss: of the step, in whatever unit.
        skipped: whether loss or gradients were not finite, so that the optimizer did nothing.
        shape: rows and sequence length of the batch: losses of other shapes are not compared.
    """
    if skipped or not math.isfinite(loss):
        in_row = (*history.skipped_in_row, place)[-guard.max_skipped :]
        return replace(history, skipped=history.skipped + 1, skipped_in_row=in_row)
    if shape != history.shape:
        history = replace(history, losses=(), shape=shape, spike=None, above=0)
    high = (
        guard.spike_threshold > 0
        and len(history.losses) >= guard.spike_window
        and loss > spike_threshold(history.losses, guard.spike_threshold)
    )
    return replace(
        history,
        skipped_in_row=(),
        losses=(*history.losses, loss)[-guard.spike_window :],
        spike=(history.spike or place) if high else None,
        above=history.above + 1 if high else 0,
    )


def rollback_due(history: GuardHistory, guard: GuardConfig) -> bool:
    """Whether a spike has lasted long enough to go back, and that is wanted and has not happened too often."""
    return guard.rollback and history.above == guard.spike_steps and len(history.rollbacks) < guard.max_rollbacks
