"""Run the runs of a study one after the other on this machine."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from data_prep.errors import UserError
from evaluation.study.arm_run import is_done, run_child
from evaluation.study.command_runner import Maskwright
from evaluation.study.step_timing import measure, read_timing, steps_of
from evaluation.study.study_file import Child, Study, children
from pretrain.reporting import duration

Show = Callable[[int, int, str], None]
"""Called with the steps done, the total steps of this call, and the current task."""


def run_study(
    folder: Path,
    study: Study,
    maskwright: Maskwright,
    say: Callable[[str], None],
    show: Show = lambda done, total, line: None,
    only: Sequence[int] | None = None,
) -> list[str]:
    """Do all unfinished runs. Return the failed runs with the reasons; a failure does not stop the other runs.

    Args:
        say: called with a line for each run that starts, ends or fails.
        only: numbers of the runs to do, from 1; then step times are not measured.

    Raises:
        UserError: if `only` has an unknown run, or a run whose number of steps is not known yet.
        Stopped: after a request to stop.
    """
    if only is None and needs_timing(folder, study):
        measure(folder, study, maskwright, say)
    chosen = _chosen(folder, study, only)
    todo = [(number, child, steps) for number, child, steps in chosen if not is_done(folder, study, child, steps)]
    if len(todo) < len(chosen):
        say(f"{len(chosen) - len(todo)} of {len(chosen)} runs are done already")
    total, done, begun = sum(steps for *_, steps in todo), 0, time.monotonic()
    failed = []
    for number, child, steps in todo:
        title, started = f"run {number} of {len(children(study))}: {child.name}", time.monotonic()
        if is_done(folder, study, child, steps):  # finished by another process since the start: a job array, or --only
            total -= steps
            say(f"{title}: done meanwhile")
            continue
        say(f"{title}, {steps:,} steps")
        try:
            run_child(folder, study, child, steps, maskwright, _teller(show, done, total, title))
        except UserError as error:
            total -= steps
            failed.append(f"{child.name}: {error}")
            say(f"{title}: failed: {error}")
            continue
        done += steps
        left = (time.monotonic() - begun) * (total - done) / done
        more = f"; about {duration(left)} left" if done < total else ""
        say(f"{title}: done in {duration(time.monotonic() - started)}{more}")
    return failed


def _teller(show: Show, done: int, total: int, title: str) -> Callable[[str, int], None]:
    """Progress callback of a run, after `done` steps of earlier runs."""
    return lambda doing, steps_done: show(done + steps_done, total, f"{title}, {doing}")


def needs_timing(folder: Path, study: Study) -> bool:
    """Whether the step times of the arms must be measured first."""
    return "time" in study.budgets and read_timing(folder, study) is None


def _chosen(folder: Path, study: Study, only: Sequence[int] | None) -> list[tuple[int, Child, int]]:
    every = children(study)
    found = []
    for number in range(1, len(every) + 1) if only is None else only:
        if not 1 <= number <= len(every):
            raise UserError(f"{folder} has the runs 1 to {len(every)}, and no run {number}")
        steps = steps_of(folder, study, every[number - 1])
        if steps is None:
            raise UserError(
                f"run {number} is one of equal time, and the step times of the arms are not measured yet. Measure them "
                f"with `maskwright study time {folder}`."
            )
        found.append((number, every[number - 1], steps))
    return found
