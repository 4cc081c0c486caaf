"""Measure the step time of each arm, and compute its number of steps at equal time."""

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
_WARM_UP = 10  # warm-up steps, not counted
ROUNDS = 2
_SECONDS = (1e-6, 1e6)
"""Valid range of a step time in seconds; other values mean a damaged file."""


@dataclass(frozen=True)
class Timing:
    """STUDY/timing.json. study: digest of the study. seconds: per step, by arm, one value per round."""

    study: str
    seconds: dict[str, list[float]]


def steps_in_time(seconds: dict[str, float], baseline: str, steps: int) -> dict[str, int]:
    """Steps of each arm in the time of `steps` baseline steps, rounded to the nearest integer, at least 1.

    Args:
        seconds: per step, by arm.
    """
    budget = seconds[baseline] * steps
    return {arm: max(1, round(budget / each)) for arm, each in seconds.items()}


def read_timing(folder: Path, study: Study) -> dict[str, float] | None:
    """Seconds per step, by arm; None if not measured yet, or measured for another study."""
    return {arm: float(np.mean(rounds)) for arm, rounds in read_rounds(folder, study).items()} or None


def read_rounds(folder: Path, study: Study) -> dict[str, list[float]]:
    """Seconds per step, by arm and round; empty until all rounds are measured."""
    found = _measured(folder, study)
    return found if all(len(seconds) == ROUNDS for seconds in found.values()) else {}


def _measured(folder: Path, study: Study) -> dict[str, list[float]]:
    """Seconds per step, by arm, of the rounds so far; empty if the file is missing, damaged or of another study."""
    seconds: dict[str, list[float]] = {}
    least, most = _SECONDS
    with contextlib.suppress(UserError):
        timing: Timing = read_json(folder / "timing.json", Timing)
        sound = all(least <= value <= most for rounds in timing.seconds.values() for value in rounds)
        seconds = timing.seconds if sound and timing.study == study.digest else {}
    return {arm.name: seconds.get(arm.name, []) for arm in study.arms}


def steps_of(folder: Path, study: Study, child: Child) -> int | None:
    """Steps of a run; None if the times must be measured first."""
    if child.budget == "tokens":
        return study.steps
    seconds = read_timing(folder, study)
    return None if seconds is None else steps_in_time(seconds, study.baseline, study.steps)[child.arm.name]


def measure(folder: Path, study: Study, maskwright: Maskwright, tell: Callable[[str], None]) -> None:
    """Train each arm for STEPS steps, ROUNDS times. timing.json is updated after each, and a rerun resumes from it.

    Every second round reverses the order of the arms, so that a machine that slows down steadily favours no arm.

    Raises:
        UserError: if a training fails, or another process measures. Stopped: after a request to stop.
    """
    try:
        with file_lock(folder / ".timing.lock", wait=False, needed=False):
            _measure_all(folder, study, maskwright, tell)
    except LockHeldError:  # two processes would train in the same folder and slow each other down
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
    """Median seconds per step of a short training; its folder is removed afterwards."""
    run, log = folder / "timing" / arm.name, folder / "timing" / f"{arm.name}.log"
    if run.parent.is_symlink():  # the removal below would delete the link's target
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
    """Config overrides of a timing run. A mask rate schedule runs through its full course."""
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
