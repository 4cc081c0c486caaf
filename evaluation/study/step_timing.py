"""How long a step of each arm takes, and how many steps of it fit into the baseline's time."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import UserError
from data_prep.files import LockHeldError, file_lock, write_json
from data_prep.reading import read_json
from evaluation.study.arm_run import overrides, said_last
from evaluation.study.arms import Arm
from evaluation.study.command_runner import Maskwright
from evaluation.study.study_file import Child, Study
from pretrain.run import read_measured

STEPS = 40
_WARM_UP = 10  # steps of these that are not counted
ROUNDS = 2
_SECONDS = (1e-6, 1e6)
"""A step takes at least and at most so long; other figures are of a damaged file."""


@dataclass(frozen=True)
class Timing:
    """STUDY/timing.json. study: its digest. seconds: of a step, by arm, of each round."""

    study: str
    seconds: dict[str, list[float]]


def steps_in_time(seconds: dict[str, float], baseline: str, steps: int) -> dict[str, int]:
    """The steps of each arm that take as long as `steps` of the baseline, to the nearest one; at least 1.

    Args:
        seconds: of a step, by arm.
    """
    budget = seconds[baseline] * steps
    return {arm: max(1, round(budget / each)) for arm, each in seconds.items()}


def read_timing(folder: Path, study: Study) -> dict[str, float] | None:
    """Seconds of a step, by arm; None before they are measured, or if they are another study's."""
    return {arm: float(np.mean(rounds)) for arm, rounds in read_rounds(folder, study).items()} or None


def read_rounds(folder: Path, study: Study) -> dict[str, list[float]]:
    """Seconds of a step, by arm, of each round of measuring; nothing before all are measured."""
    found = _measured(folder, study)
    return found if all(len(seconds) == ROUNDS for seconds in found.values()) else {}


def _measured(folder: Path, study: Study) -> dict[str, list[float]]:
    """Seconds of a step, by arm, of the rounds so far; none if the file is missing, damaged or of another study."""
    seconds: dict[str, list[float]] = {}
    least, most = _SECONDS
    with contextlib.suppress(UserError):
        timing: Timing = read_json(folder / "timing.json", Timing)
        sound = all(least <= value <= most for rounds in timing.seconds.values() for value in rounds)
        seconds = timing.seconds if sound and timing.study == study.digest else {}
    return {arm.name: seconds.get(arm.name, []) for arm in study.arms}


def steps_of(folder: Path, study: Study, child: Child) -> int | None:
    """The steps of a run; None if they are not known before times are measured."""
    if child.budget == "tokens":
        return study.steps
    seconds = read_timing(folder, study)
    return None if seconds is None else steps_in_time(seconds, study.baseline, study.steps)[child.arm.name]


def measure(folder: Path, study: Study, maskwright: Maskwright, tell: Callable[[str], None]) -> None:
    """Train each arm for STEPS steps, ROUNDS times; timing.json is written after each, and what it has is not repeated.

    Every second round goes through the arms backwards, so that a machine that slows down evenly favours none.

    Raises:
        UserError: if a training fails, or another process measures. Stopped: if somebody asked to stop.
    """
    try:
        with file_lock(folder / ".timing.lock", wait=False, needed=False):
            _measure_all(folder, study, maskwright, tell)
    except LockHeldError:  # two would train in the same folder, and take each other's time
        raise UserError(f"{folder}: another process measures the times of its arms; wait for it") from None


def _measure_all(folder: Path, study: Study, maskwright: Maskwright, tell: Callable[[str], None]) -> None:
    found = _measured(folder, study)
    for number in range(ROUNDS):
        for arm in study.arms[:: -1 if number % 2 else 1]:
            if len(found[arm.name]) > number:
                continue
            tell(f"measuring the time of {arm.name}, round {number + 1} of {ROUNDS}")
            found[arm.name].append(_measure(folder, study, arm, maskwright))
            write_json(folder / "timing.json", {"study": study.digest, "seconds": found})


def _measure(folder: Path, study: Study, arm: Arm, maskwright: Maskwright) -> float:
    """Seconds of a step: the median of a short training, which is then removed."""
    run, log = folder / "timing" / arm.name, folder / "timing" / f"{arm.name}.log"
    if run.parent.is_symlink():  # what is removed below would be somewhere else
        raise UserError(f"{run.parent} is a symbolic link; put a folder there")
    shutil.rmtree(run, ignore_errors=True)
    words = ["train", str(folder / "config.yaml"), *overrides(settings_of(run, arm)), "--procs", str(study.processes)]
    if code := maskwright(words, log):
        failed = f"the training that measures the time of {arm.name} ended with exit code {code}"
        raise UserError(f"{failed}: {said_last(log)}")
    seconds = read_measured(run / "journal.jsonl").series("speed/step_seconds").values
    shutil.rmtree(run)
    if len(seconds) <= _WARM_UP:
        raise UserError(f"the training that measures the time of {arm.name} tells of {len(seconds)} steps; see {log}")
    return float(np.median(seconds[_WARM_UP:]))


def settings_of(run: Path, arm: Arm) -> dict[str, Any]:
    """What such a training changes in the study's config. A mask rate that changes goes through its whole course."""
    return {
        "run.dir": str(run),
        "train.steps": STEPS,
        "masking": arm.masking,
        "schedule": {"kind": "constant"},
        "train.profile": None,
        "data.valid": None,
        "track.uri": "none",
        "track.models": "none",
    }
