"""Other programs' words, asked for with patience."""

import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

SECONDS = 8.0


class Answer(NamedTuple):
    """What a program printed, and whether it ended well."""

    works: bool
    text: str


def ask(*command: str, seconds: float = SECONDS, environment: Mapping[str, str] | None = None) -> Answer | None:
    """What a program prints, stderr where it failed; None where it is not installed."""
    if shutil.which(command[0]) is None:
        return None
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, env=environment
        )
    except subprocess.TimeoutExpired:
        return Answer(False, f"{command[0]} did not answer within {seconds:g} s")
    except OSError as error:
        return Answer(False, f"{command[0]} cannot be run ({error.strerror})")
    text = result.stdout if result.returncode == 0 else result.stderr or result.stdout
    return Answer(result.returncode == 0, text.strip())


def one_line(text: str, limit: int = 200) -> str:
    """The words of a text on one line, cut short."""
    words = " ".join(text.split())
    return words if len(words) <= limit else words[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
