"""Report the phases of a start: a line on standard error for each, with the seconds since the start."""

import os
import sys
import time

from pretrain.run.folder import LOCK_VARIABLE, RunFolder

LIBRARIES = "loading libraries"
DATA = "reading the data set"
MODEL = "building the model"
FIRST_STEP = "first step"
_BEGAN_VARIABLE = "MASKWRIGHT_BEGAN"
"""When the command or, without one, rank 0 began, by time.monotonic; processes inherit it."""


def begin(line: str) -> None:
    """Print the first line of a start; the seconds count from here."""
    os.environ[_BEGAN_VARIABLE] = str(time.monotonic())
    print(line, file=sys.stderr, flush=True)


def say_phase(phase: str) -> None:
    """Print the phase that begins now."""
    began = float(os.environ.setdefault(_BEGAN_VARIABLE, str(time.monotonic())))
    print(f"{time.monotonic() - began:6.1f} s  {phase}", file=sys.stderr, flush=True)


def enter(folder: RunFolder, phase: str) -> None:
    """On rank 0, print the phase that begins now, and record it in the status of a run that holds its folder."""
    if os.environ.get("RANK", "0") == "0":
        say_phase(phase)
        if folder.claimed or LOCK_VARIABLE in os.environ:
            folder.enter(phase)
