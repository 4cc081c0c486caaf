"""Schedule of the learning rate: a pure function of the step."""

import math

from pretrain.config import ScheduleConfig


def lr_factor(schedule: ScheduleConfig, step: int, total_steps: int) -> float:
    """The share of the peak learning rate at a step.

    Args:
        step: 0 for the first optimizer step.
        total_steps: train.steps.

    All kinds warm up along a line to 1. Then `constant` stays there; `linear` and `cosine` (Loshchilov and Hutter,
    SGDR, 2017) fall to `min_ratio` at the end; `wsd` (warmup, stable, decay; Hu et al., MiniCPM, 2024) stays at 1 and
    falls in its last steps alone: along a line, half a cosine, or 1 minus the root of what has passed (Hägele et al.,
    "Scaling laws and compute-optimal training beyond fixed training durations", 2024). The end is one step beyond the
    last, which so has a positive rate.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    steps = _decay_steps(schedule, total_steps)
    if steps <= 0:
        return 1.0
    left = max(0.0, min(1.0, (total_steps - step) / steps))
    shape = schedule.decay if schedule.kind == "wsd" else schedule.kind
    return schedule.min_ratio + (1 - schedule.min_ratio) * _falling(shape, left)


def _decay_steps(schedule: ScheduleConfig, total_steps: int) -> int:
    """How many of the last steps the rate falls in; the warm-up comes first."""
    after_warmup = total_steps - schedule.warmup_steps
    if schedule.kind == "constant":
        return 0
    if schedule.kind != "wsd":
        return after_warmup
    wanted = schedule.decay_steps
    return min(after_warmup, round(schedule.decay_fraction * total_steps) if wanted is None else wanted)


def _falling(shape: str, left: float) -> float:
    """From 1 where all of the decay is left to 0 where nothing is."""
    if shape == "cosine":
        return (1 - math.cos(math.pi * left)) / 2
    return 1 - math.sqrt(1 - left) if shape == "1-sqrt" else left
