"""Schedule of the mask rate: a pure function of the step."""

import math

from pretrain.config import MaskingConfig


def mask_rate(masking: MaskingConfig, step: int, total_steps: int) -> float:
    """The share of a row's ordinary tokens to predict at a step.

    Args:
        step: 0 for the first optimizer step.
        total_steps: train.steps.

    The rate changes from `start` at the first step to `end` at the last, linearly or along half a cosine. Falling rates
    train faster than constant ones (Ankner et al., "Dynamic masking rate schedules for MLM pretraining", EACL 2024).
    """
    rate = masking.rate
    if isinstance(rate, float):
        return rate
    done = min(1.0, step / max(total_steps - 1, 1))
    if rate.schedule == "cosine":
        done = (1 - math.cos(math.pi * done)) / 2
    return rate.start + (rate.end - rate.start) * done


def largest_mask_rate(masking: MaskingConfig) -> float:
    """The maximum of `mask_rate` over all steps; it sizes the arrays."""
    return masking.rate if isinstance(masking.rate, float) else max(masking.rate.start, masking.rate.end)
