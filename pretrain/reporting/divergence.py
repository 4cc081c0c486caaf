"""Whether the training of a run has diverged: a pure function of its losses."""

import math

import numpy as np

from pretrain.run import JournalTable

_MARGIN = 1.1
_FEWEST, _MOST = 10, 100  # steps of an average
_LEARNED = 2.0  # nats


def divergence(measured: JournalTable, vocabulary_size: int | None) -> str | None:
    """How the loss of the last phase diverged, as the end of a sentence; None if it did not.

    It diverged if its last average is not finite, is 10% above both the loss of the first step and of uniform guesses,
    or if more than half of a fall of at least 2 nats was lost again. An average is over a tenth of the steps,
    10 to 100. Untrained models and losses that do not fall are no divergence.

    Args:
        vocabulary_size: None if it is not known; then only the other two conditions count.
    """
    phases, losses = (measured.series(name, abandoned=False).values for name in ("train/phase", "train/loss"))
    if len(phases) == len(losses):
        losses = losses[phases == phases[-1:]]
    if not len(losses):
        return None
    length = min(len(losses), max(_FEWEST, min(_MOST, len(losses) // 10)))
    last, first = float(np.mean(losses[-length:])), float(losses[0])
    what = f"the loss of the last {length:,} steps is {last:,.4g} on average"
    if not math.isfinite(last):
        return what
    sums = np.cumsum(np.concatenate(([0.0], np.nan_to_num(losses))))
    best = float(np.min(sums[length:] - sums[:-length])) / length
    if vocabulary_size and last > _MARGIN * max(first, math.log(vocabulary_size)):
        return (
            f"{what}, above the loss of the first step ({first:.4g}) and of guessing ({math.log(vocabulary_size):.4g})"
        )
    if first - best > _LEARNED and last > (first + best) / 2:
        return f"{what}, after it had fallen from {first:.4g} to {best:.4g}"
    return None
