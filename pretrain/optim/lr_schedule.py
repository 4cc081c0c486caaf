"""Schedule of the learning rate: a pure function of the step."""

import math

from pretrain.config import Config, ScheduleConfig


def learning_rate(config: Config, step: int) -> float:
    """The learning rate at a step, 0 for the first.

    A schedule runs from the phase that sets it to the next phase that sets one.
    """
    phase = config.phase_at(step)
    span = phase.spans["schedule"]
    return phase.config.optim.lr * lr_factor(phase.config.schedule, step - span.start, span.steps)


def lr_factor(schedule: ScheduleConfig, step: int, total_steps: int) -> float:
    """The share of the peak learning rate at a step.

    Args:
        step: 0 for the first step of the schedule.
        total_steps: its steps.

    All kinds warm up linearly to 1. Then:

    - `constant` stays at 1;
    - `linear` and `cosine` (Loshchilov and Hutter, SGDR, 2017) fall to `min_ratio` at the end;
    - `wsd` (warmup, stable, decay; Hu et al., MiniCPM, 2024) stays at 1 and falls only in its last steps: linearly,
      along half a cosine, or as 1 minus the square root of the elapsed part (Hägele et al., "Scaling laws and
      compute-optimal training beyond fixed training durations", 2024).

    The end is one step after the last step, so the last step has a positive rate.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    steps = total_steps - schedule.warmup_steps  # with a falling rate; the warm-up has precedence
    if schedule.kind == "wsd":
        steps = min(steps, round(schedule.decay_fraction * total_steps))
    if steps <= 0 or schedule.kind == "constant":
        return 1.0
    left = max(0.0, min(1.0, (total_steps - step) / steps))
    shape = schedule.decay if schedule.kind == "wsd" else schedule.kind
    if shape == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    elif shape == "1-sqrt":
        left = 1 - math.sqrt(1 - left)
    return schedule.min_ratio + (1 - schedule.min_ratio) * left
