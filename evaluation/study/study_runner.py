"""Run a study on this machine: preview, step times of the arms, and the runs one after the other."""

import shutil
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np

from data_prep.errors import UserError
from data_prep.files import LockHeldError, file_lock, write_json
from evaluation.study.arm_run import Maskwright, call, do_run, is_done, train_words, unfinished
from evaluation.study.study_file import (
    TIMING_ROUNDS,
    Arm,
    Study,
    StudyRun,
    equal_time_steps,
    needs_timing,
    read_rounds,
    runs_of,
)
from pretrain.run import JournalTable, RunFolder

_TIMED_STEPS = 40
_WARM_UP = 10  # of these, not counted

Say = Callable[[str], None]
"""Called with a line for the user."""
Show = Callable[[int, int, str], None]
"""Called with the steps done, the total steps of this call, and the current task."""


def describe(folder: Path, study: Study) -> list[str]:
    """Lines of a preview: the arms with their steps, and the number of runs. The folder need not exist yet."""
    steps = equal_time_steps(folder, study) if "time" in study.budgets else {}
    lines = [f"{folder}: {len(study.arms)} arms, {study.seeds} seeds each, baseline {study.baseline}"]
    for arm in study.arms:
        counts = [f"{study.steps:,} steps"] if "tokens" in study.budgets else []
        if "time" in study.budgets:
            counts.append(f"{steps[arm.name]:,} steps at equal time" if steps else "equal time: steps not known yet")
        lines.append("  ".join([f"  {arm.name:<{max(len(one.name) for one in study.arms)}}", *counts]))
    runs, left = runs_of(folder, study), len(unfinished(folder, study))
    return [*lines, f"{len(runs)} runs" + (f", {len(runs) - left} of them done" if left < len(runs) else "")]


def run_study(
    folder: Path,
    study: Study,
    maskwright: Maskwright,
    say: Say,
    show: Show = lambda done, total, line: None,
    only: Sequence[int] | None = None,
) -> list[str]:
    """Do all unfinished runs. Return the failed runs with the reasons; a failure does not stop the other runs.

    Args:
        say: called when a run starts, ends or fails.
        only: numbers of the runs to do, from 1; then step times are not measured.

    Raises:
        UserError: if `only` has an unknown run, or a run whose number of steps is not known yet.
        Stopped: after a request to stop.
    """
    if only is None and needs_timing(folder, study):
        measure_times(folder, study, maskwright, say)
    runs = runs_of(folder, study)
    chosen = [(number, _chosen(folder, runs, number)) for number in (range(1, len(runs) + 1) if only is None else only)]
    todo = [(number, run) for number, run in chosen if not is_done(study, run)]
    if len(todo) < len(chosen):
        say(f"{len(chosen) - len(todo)} of {len(chosen)} runs are done already")
    total, done, failed = sum(run.steps or 0 for _, run in todo), 0, []
    for number, run in todo:
        title, begun = f"run {number} of {len(runs)}: {run.name}", time.monotonic()
        if is_done(study, run):  # finished by another process since the start: a job array, or --only
            say(f"{title}: done meanwhile")
            continue
        say(f"{title}, {run.steps:,} steps")

        def report(doing: str, steps: int, done: int = done, title: str = title) -> None:
            show(done + steps, total, f"{title}, {doing}")

        try:
            do_run(folder, study, run, maskwright, report)
            say(f"{title}: done in {timedelta(seconds=round(time.monotonic() - begun))}")
        except UserError as error:
            failed.append(f"{run.name}: {error}")
            say(f"{title}: failed: {error}")
        done += run.steps or 0
    return failed


def _chosen(folder: Path, runs: list[StudyRun], number: int) -> StudyRun:
    if not 1 <= number <= len(runs):
        raise UserError(f"{folder} has the runs 1 to {len(runs)}, and no run {number}")
    if runs[number - 1].steps is None:
        raise UserError(
            f"run {number} is one of equal time, and the step times of the arms are not measured yet. Measure them "
            f"with `maskwright study time {folder}`."
        )
    return runs[number - 1]


def measure_times(folder: Path, study: Study, maskwright: Maskwright, say: Say) -> None:
    """Train each arm for some steps in each round. timing.json is updated after each, and a rerun resumes from it.

    Every second round reverses the order of the arms, so that a machine that slows down steadily favours no arm.

    Raises UserError if a training fails, or another process measures, and Stopped after a request to stop.
    """
    try:
        with file_lock(folder / ".timing.lock", wait=False, needed=False):
            seconds = read_rounds(folder, study, partial=True)
            for number in range(TIMING_ROUNDS):
                for arm in study.arms[:: -1 if number % 2 else 1]:
                    if len(seconds[arm.name]) <= number:
                        say(f"measuring the time of {arm.name}, round {number + 1} of {TIMING_ROUNDS}")
                        seconds[arm.name].append(_step_seconds(folder, study, arm, maskwright))
                        write_json(folder / "timing.json", {"study": study.digest, "seconds": seconds})
    except LockHeldError:  # two processes would train in the same folder and slow each other down
        raise UserError(f"{folder}: another process measures the times of its arms; wait for it") from None


def _step_seconds(folder: Path, study: Study, arm: Arm, maskwright: Maskwright) -> float:
    """Median seconds per step of a short training; its folder is removed afterwards."""
    run, log = folder / "timing" / arm.name, folder / "timing" / f"{arm.name}.log"
    if run.parent.is_symlink():  # the removal below would delete the link's target
        raise UserError(f"{run.parent} is a symbolic link; put a folder there")
    shutil.rmtree(run, ignore_errors=True)
    values = {
        "run.dir": str(run),
        "train.steps": _TIMED_STEPS,  # a mask rate schedule runs through its full course
        "masking": arm.masking,
        "schedule": {"kind": "constant"},
        "train.profile": None,
        "data.valid": None,
        "track.uri": "none",
        "track.models": "none",
    }
    call(maskwright, train_words(folder, study, values), log)
    seconds = JournalTable.read(RunFolder(run).journal).series("speed/step_seconds").values
    shutil.rmtree(run)
    if len(seconds) <= _WARM_UP:
        raise UserError(f"the journal of the timing run of {arm.name} has {len(seconds)} steps; see {log}")
    return float(np.median(seconds[_WARM_UP:]))
