"""Preview of a study: its arms, runs, tokens and, once measured, time."""

from pathlib import Path

from evaluation.study.arm_run import is_done
from evaluation.study.step_timing import ROUNDS, STEPS, read_timing, steps_in_time, steps_of
from evaluation.study.study_file import Study, children
from pretrain.config import Config
from pretrain.reporting import duration


def describe(folder: Path, study: Study, config: Config) -> list[str]:
    """Lines of the preview. The folder need not exist yet."""
    seconds = read_timing(folder, study)
    steps = steps_in_time(seconds, study.baseline, study.steps) if seconds else {}
    lines = [f"{folder}: {len(study.arms)} arms, {study.seeds} seeds each, baseline {study.baseline}"]
    width = max(len(arm.name) for arm in study.arms)
    for arm in study.arms:
        line = f"  {arm.name:<{width}}"
        if "tokens" in study.budgets:
            line += f"  {study.steps:,} steps"
        if "time" in study.budgets:
            line += f"  {steps[arm.name]:,} steps at equal time" if steps else "  equal time: steps not known yet"
        lines.append(line + (f"  {seconds[arm.name]:.3f} s a step" if seconds else ""))
    return [*lines, *_totals(folder, study, config, seconds)]


def _totals(folder: Path, study: Study, config: Config, seconds: dict[str, float] | None) -> list[str]:
    runs = [(child, steps_of(folder, study, child)) for child in children(study)]
    todo = [(child, steps) for child, steps in runs if not is_done(folder, study, child, steps)]
    slots = sum(slots_of(config, study.steps if steps is None else steps) for _, steps in todo)
    done = f", {len(runs) - len(todo)} of them done" if len(todo) < len(runs) else ""
    lines = [f"{len(runs)} runs{done}; {slots:,} slots of tokens to train on, padding included"]
    if seconds:
        left = sum(seconds[child.arm.name] * (steps or study.steps) for child, steps in todo)
        return [*lines, f"about {duration(left)} of training, evaluations left out"]
    if "time" in study.budgets:
        return [*lines, f"time: measured first, in {ROUNDS} rounds of {STEPS} steps of each arm"]
    return [*lines, "time: known after the first run"]


def slots_of(config: Config, steps: int) -> int:
    """Slots in the batches of the first `steps` steps."""
    stages = [stage for stage in config.stages if stage.after_step < steps]
    ends = [*(stage.after_step for stage in stages[1:]), steps]
    return sum(
        (end - stage.after_step) * stage.global_batch_size * stage.seq_len
        for stage, end in zip(stages, ends, strict=True)
    )
