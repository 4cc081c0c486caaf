"""A study's runs, one after the other, on this machine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.errors import UserError
from launchers.study.child import is_done, run_child
from launchers.study.commands import Maskwright
from launchers.study.definition import Child, Study, children
from launchers.study.timing import measure, read_timing, steps_of
from pretrain.progress import duration

Show = Callable[[int, int, str], None]
"""Called with the steps done, the steps to do in this call, and what is going on."""


@dataclass
class _Account:
    """Where a call of `run_study` stands: the steps of the runs that it has to do, and of those that it has done."""

    show: Show
    say: Callable[[str], None]
    total: int
    runs: int
    done: int = 0
    begun: float = field(default_factory=time.monotonic)

    def left(self) -> str:
        """About how long the rest takes."""
        if not self.done:
            return ""
        seconds = (time.monotonic() - self.begun) * (self.total - self.done) / self.done
        return f"; about {duration(seconds)} left" if self.done < self.total else ""


def run_study(
    folder: Path,
    study: Study,
    maskwright: Maskwright,
    say: Callable[[str], None],
    show: Show = lambda done, total, line: None,
    only: Sequence[int] | None = None,
) -> list[str]:
    """Do what is not done; the runs that failed, each with the reason, the others being done nevertheless.

    Args:
        say: called with a line for each run that begins, ends or fails.
        only: the numbers of some runs, from 1; times are then not measured.

    Raises:
        UserError: if `only` names no run, or one whose number of steps is not known yet.
        Stopped: if somebody asked to stop.
    """
    if only is None and needs_timing(folder, study):
        measure(folder, study, maskwright, say)
    chosen = _chosen(folder, study, only)
    todo = [(number, child, steps) for number, child, steps in chosen if not is_done(folder, study, child, steps)]
    if len(todo) < len(chosen):
        say(f"{len(chosen) - len(todo)} of {len(chosen)} runs are done already")
    account = _Account(show, say, sum(steps for *_, steps in todo), len(children(study)))
    failed = [problem for work in todo if (problem := _do(folder, study, maskwright, work, account))]
    return failed


def needs_timing(folder: Path, study: Study) -> bool:
    """Whether the times of the arms are still to be measured."""
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
                f"run {number} is one of equal time, and how long the arms take is not measured yet: do that with "
                f"`maskwright study time {folder}`"
            )
        found.append((number, every[number - 1], steps))
    return found


def _do(
    folder: Path, study: Study, maskwright: Maskwright, work: tuple[int, Child, int], account: _Account
) -> str | None:
    """One run; why it failed, or None."""
    number, child, steps = work
    title, begun = f"run {number} of {account.runs}: {child.name}", time.monotonic()
    if is_done(folder, study, child, steps):  # since this call began: elements of an array, or --only elsewhere
        account.total -= steps
        account.say(f"{title}: done meanwhile")
        return None
    account.say(f"{title}, {steps:,} steps")

    def tell(doing: str, steps_done: int) -> None:
        account.show(account.done + steps_done, account.total, f"{title}, {doing}")

    try:
        run_child(folder, study, child, steps, maskwright, tell)
    except UserError as error:
        account.total -= steps
        account.say(f"{title}: failed: {error}")
        return f"{child.name}: {error}"
    account.done += steps
    account.say(f"{title}: done in {duration(time.monotonic() - begun)}{account.left()}")
    return None
