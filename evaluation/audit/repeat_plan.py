"""Which steps of a run an audit repeats, and the settings of the repeated run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from pretrain import checkpoint
from pretrain.config_files import override_words
from pretrain.run import RunFolder


@dataclass(frozen=True)
class AuditPlan:
    """The steps after `start`, up to `end`, which are repeated.

    begins: the checkpoint of `start`; None for step 0. ends: the checkpoint of `end`; None if it was not kept.
    """

    start: int
    end: int
    begins: Path | None
    ends: Path | None


def plan_audit(folder: RunFolder, steps: tuple[int, int] | None) -> AuditPlan:
    """Choose what to repeat: from the last checkpoint before the steps to the first one after them.

    Args:
        steps: the first and last step to check; by default those between the two newest checkpoints, or up to the only
            one.

    Raises UserError if the run has not taken the steps, has no checkpoint, or a checkpoint is damaged.
    """
    saved = dict(checkpoint.committed(folder.checkpoints))
    if steps is None:
        if not saved:
            raise UserError(f"{folder.path} has no checkpoint, so its weights cannot be compared. Give --steps A:B.")
        newest = sorted(saved)[-2:]
        start, end = newest if len(newest) == 2 else (0, newest[0])
    else:
        start = max((step for step in saved if step < steps[0]), default=0)
        end = min((step for step in saved if step >= steps[1]), default=steps[1])
    plan = AuditPlan(start, end, saved.get(start), saved.get(end))
    for path in (plan.begins, plan.ends):
        if path and (problem := checkpoint.verify(path)):
            raise UserError(f"{path} is damaged: {problem}")
    return plan


def repeat_settings(plan: AuditPlan, run_dir: Path) -> list[str]:
    """Settings of the repeated run that replace the settings of the run."""
    values: dict[str, Any] = {
        "run.dir": run_dir,
        "run.resume": "auto",
        "run.stop_after": plan.end,
        "eval.every_steps": plan.end + 1,
        "checkpoint.every_steps": plan.end + 1,
        "checkpoint.every_minutes": None,
        "checkpoint.keep_every": None,
        "checkpoint.remote": None,
        "track.uri": "none",
        "track.models": "none",
    }
    if plan.begins:
        values |= {"run.resume": plan.begins.resolve(), "run.trust_checkpoint": True}
    return override_words(values)
