"""Schedule of the mask rate: a pure function of the step."""

import math

from pretrain.config import Config, MaskingConfig


def mask_rate(config: Config, step: int, total_steps: int | None = None) -> float:
    """The share of a row's ordinary tokens to predict at a step: 1 if the objective has no rate.

    Args:
        step: 0 for the first optimizer step.
        total_steps: train.steps by default.

    The rate changes from `start` at the first step to `end` at the last, linearly or along half a cosine. Falling rates
    train faster than constant ones (Ankner et al., "Dynamic masking rate schedules for MLM pretraining", EACL 2024).
    """
    rate = config.masking.rate
    if "rate" in config.objective_kind.unread:
        return 1.0
    if isinstance(rate, float):
        return rate
    done = min(1.0, step / max((total_steps or config.train.steps) - 1, 1))
    if rate.schedule == "cosine":
        done = (1 - math.cos(math.pi * done)) / 2
    return rate.start + (rate.end - rate.start) * done


def largest_mask_rate(masking: MaskingConfig) -> float:
    """The maximum of `mask_rate` over all steps; it sizes the arrays."""
    return masking.rate if isinstance(masking.rate, float) else max(masking.rate.start, masking.rate.end)
