"""Learning-rate schedules: pure functions of the step."""

from pretrain.config import ScheduleConfig


def lr_factor(schedule: ScheduleConfig, step: int, total_steps: int) -> float:
    """The share of the peak learning rate at a step.

    Args:
        step: 0 for the first optimizer step.
        total_steps: train.steps.

    `linear` warms up to 1 and falls to 0 at the end; `wsd` (warmup, stable, decay; Hu et al., MiniCPM, 2024) stays at
    1 until the last `decay_fraction` of the run, then falls linearly. The last step still has a positive rate.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    decay_steps = total_steps - schedule.warmup_steps
    if schedule.kind == "wsd":
        decay_steps = min(decay_steps, round(schedule.decay_fraction * total_steps))
    if decay_steps <= 0:
        return 1.0
    return max(0.0, min(1.0, (total_steps - step) / decay_steps))
