"""Which steps of a run an audit repeats, and how losses, batches and weights of them differ from those recorded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from data_prep.common.errors import UserError
from pretrain import checkpoint
from pretrain.config import Config
from pretrain.config_files import override_words
from pretrain.export import native_state
from pretrain.run import Entry, JournalReader, RunFolder, step_name

_METRICS = ("train/loss", "train/grad_norm")
# What may change the last bits of results, besides the hardware.
_MACHINE = ("python", "packages", "processes", "threads", "backend", "cuda", "attention", "kernels")


@dataclass(frozen=True)
class AuditPlan:
    """The steps after `start`, up to `end`, which are repeated.

    begins: the checkpoint of `start`; None for step 0. ends: the checkpoint of `end`; None if it was not kept.
    """

    start: int
    end: int
    begins: Path | None
    ends: Path | None


def plan_audit(folder: RunFolder, steps: tuple[int, int] | None, resume: str = "auto") -> AuditPlan:
    """Choose what to repeat: from the last checkpoint before the steps to the first one after them.

    Args:
        resume: the setting run.resume of the run, which may name the checkpoint that a branch began with.
        steps: the first and last step to check; by default those between the two newest checkpoints, or up to the only
            one.

    Raises UserError if the run has not taken the steps, has no checkpoint, or a checkpoint is damaged.
    """
    saved, first = dict(checkpoint.committed(folder.checkpoints)), checkpoint.step_of(Path(resume).name)
    if steps is None:
        if not saved:
            raise UserError(f"{folder.path} has no checkpoint, so its weights cannot be compared. Give --steps A:B.")
        steps = max(saved), max(saved)
    if first is not None and Path(resume).is_dir():
        saved.setdefault(first, Path(resume))
    start = max((step for step in saved if step < steps[0]), default=0)
    end = min((step for step in saved if step >= steps[1]), default=steps[1])
    recorded = JournalReader(folder.journal).training_step(end)[1]
    if missing := {start + 1, end}.difference(recorded):
        known = f"Its steps are {recorded[0]} to {recorded[-1]}." if recorded else "It has none."
        raise UserError(f"{folder.journal} has no step {min(missing)}, which would be compared. {known}")
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


@dataclass(frozen=True)
class AuditResult:
    """allowed: the relative difference that was allowed; `how` says it in words. difference: the first one, or None."""

    allowed: float
    how: str
    difference: str | None


def _hardware(environment: Mapping[str, Any]) -> set[str]:
    hosts = environment.get("hosts") or []
    return {str(host.get("processor")) for host in hosts} | {
        str(gpu.get("name")) for host in hosts for gpu in host.get("gpus") or []
    }


def compare_results(run: Path, repeated: Path, plan: AuditPlan, config: Config, tolerance: float) -> AuditResult:
    """Compare the repeated steps with those that the run recorded, and the weights of the checkpoint at their end.

    Args:
        tolerance: relative difference that results may have where other bits are expected.
    """
    before, now = (RunFolder(folder).read_environment() or {} for folder in (run, repeated))
    changed = [name for name in _MACHINE if before.get(name) != now.get(name)]
    changed += ["hardware"] if _hardware(before) != _hardware(now) else []
    exact = not changed and (now.get("backend") == "gloo" or config.run.deterministic)
    allowed = 0.0 if exact else tolerance
    reason = f"different: {', '.join(changed)}" if changed else "GPU results vary in their last bits"
    problem = first_difference(run, repeated, plan, allowed)
    if problem is None and plan.ends:
        end = RunFolder(repeated).checkpoints / step_name(plan.end)
        problem = weights_difference(plan.ends, end, allowed)
    return AuditResult(allowed, f"within {allowed:g} ({reason})" if allowed else "bit for bit", problem)


def first_difference(run: Path, repeated: Path, plan: AuditPlan, allowed: float) -> str | None:
    """The first repeated step whose batch, loss or gradient norm differs from the journal; None if no step does."""
    recorded, again = (_steps(RunFolder(folder).journal) for folder in (run, repeated))
    for step in range(plan.start + 1, plan.end + 1):
        if (before := recorded.get(step)) is None:
            return f"step {step} is not in {RunFolder(run).journal}"
        if problem := _difference(before, again[step], allowed):
            return f"step {step} is the first that differs: {problem}"
    return None


def _steps(journal: Path) -> dict[int, Entry]:
    return {entry.step: entry for entry in JournalReader(journal).entries(batches=True) if entry.batch}


def _difference(before: Entry, now: Entry, allowed: float) -> str | None:
    recorded, repeated = ((entry.batch or {}).get("checksum") for entry in (before, now))
    if recorded != repeated:
        return f"its batch has checksum {recorded} in the journal and {repeated} now"
    for name in _METRICS:
        value, again = before.metrics.get(name, math.nan), now.metrics[name]
        if not (value == again or abs(value - again) <= allowed * abs(again)):
            return f"{name} is {value!r} in the journal and {again!r} now"
    return None


def weights_difference(ends: Path, repeated: Path, allowed: float) -> str | None:
    """The weights of two checkpoints that differ most, by the norm of the difference; None if none does."""
    before, now = (native_state(checkpoint.read(path)) for path in (ends, repeated))
    shares = {
        name: float((weights - now[name]).norm() / now[name].norm().clamp(min=1e-30))
        for name, weights in before.items()
        if not torch.equal(weights, now[name])
    }
    name = max(shares, key=lambda name: shares[name], default=None)
    if name is None or shares[name] <= allowed:
        return None
    return f"{len(shares)} weights of {ends} differ, most {name}, by {shares[name]:.1e} of its norm"
