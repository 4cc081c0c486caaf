"""Loss spikes and skipped steps, detected from the history of a run. Pure functions."""

import math
from dataclasses import replace
from statistics import median

from pretrain.config import GuardConfig
from pretrain.guards.guard_history import GuardHistory, StreamPoint

_NORMAL = 1.4826  # standard deviation of normal noise, divided by its median absolute deviation
_LEAST = 0.01  # least deviation, as a share of the median, for losses that hardly vary


def spike_threshold(losses: tuple[float, ...], deviations: float) -> float:
    """The loss above which a spike begins: `deviations` robust standard deviations above the median of `losses`."""
    middle = median(losses)
    spread = _NORMAL * median(abs(loss - middle) for loss in losses)
    return middle + deviations * max(spread, _LEAST * abs(middle))


def after_step(
    history: GuardHistory, place: StreamPoint, loss: float, skipped: bool, shape: tuple[int, int], guard: GuardConfig
) -> GuardHistory:
    """Add one step to the history.

    Args:
        loss: the loss of the step, in any unit.
        skipped: whether loss or gradients were not finite, so the optimizer skipped the step.
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
    """Whether to roll back: the spike has lasted guard.spike_steps, and guard.max_rollbacks is not reached."""
    return guard.rollback and history.above == guard.spike_steps and len(history.rollbacks) < guard.max_rollbacks
