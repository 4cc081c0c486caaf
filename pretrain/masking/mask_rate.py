"""Schedule of the mask rate and of other settings: pure functions of the step."""

import math

from pretrain.config import Config, MaskingConfig, SettingSchedule


def mask_rate(config: Config, step: int, total_steps: int | None = None) -> float:
    """The share of a row's ordinary tokens to predict at a step: 1 if the objective has no rate.

    Args:
        step: 0 for the first optimizer step.
        total_steps: of the schedule; by default, all steps of the phases that share it.

    The rate changes from `start` at the first step to `end` at the last, linearly or along half a cosine. Falling rates
    train faster than constant ones (Ankner et al., "Dynamic masking rate schedules for MLM pretraining", EACL 2024).
    """
    phase = config.phase_at(0 if total_steps else step)
    span = phase.spans["masking.rate"]
    if not phase.config.masks_at_a_rate:
        return 1.0
    return scheduled(phase.config.masking.rate, step - span.start, total_steps or span.steps)


def scheduled(setting: float | SettingSchedule, step: int, total_steps: int) -> float:
    """The value of a setting at a step: a number, or on the way from `start` at step 0 to `end` at the last step."""
    if isinstance(setting, float):
        return setting
    done = min(1.0, step / max(total_steps - 1, 1))
    if setting.schedule == "cosine":
        done = (1 - math.cos(math.pi * done)) / 2
    return setting.start + (setting.end - setting.start) * done


def largest_mask_rate(masking: MaskingConfig) -> float:
    """The maximum of `mask_rate` over all steps; it sizes the arrays."""
    return masking.rate if isinstance(masking.rate, float) else max(masking.rate.start, masking.rate.end)
