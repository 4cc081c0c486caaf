"""Read RUN/environment.json for commands that show it: missing values and values of a wrong type are left out."""

import contextlib
from pathlib import Path
from typing import Any

from data_prep.common.reading import json_or_none, typed

_GPU = {"name": str, "memory_gb": float}
_HOST = {"host": str, "ranks": list[int], "system": str, "processor": str, "cores": int, "gpus": [_GPU], "driver": str}
_DATA = {"name": str, "location": str, "fingerprint": str, "documents": int, "tokens": int}
_START: dict[str, Any] = {
    "time": str,
    "after_step": int,
    "python": str,
    "packages": dict[str, str | None],
    "git_commit": str,
    "git_changes": bool,
    "command": str,
    "slurm": dict[str, str],
    "processes": int,
    "threads": int,
    "backend": str,
    "hosts": [_HOST],
    "parameters": int,
    "data": [_DATA],
    "attention": str,
    "flash_attention": int,
    "attention_reason": str,
    "kernels": str,
    "kernels_reason": str,
    "kernels_made_with": str,
    "micro_batch_size": int,
    "phases": list[str],
    "vocabulary_size": int,
    "unigram_loss": float,
    "warnings": list[str],
}
_FILE = _START | {"earlier_starts": [_START]}


def read_environment(path: Path) -> dict[str, Any] | None:
    """The recorded environment of a run's starts, with the types above; None if the file is missing or damaged."""
    values = json_or_none(path, dict[str, Any])
    return None if values is None else _sound(_FILE, values)


def _sound(kinds: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The values of the right kinds; a list in `kinds` means a list of objects."""
    sound: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = values.get(name)
        if isinstance(kind, list):
            if isinstance(value, list):
                sound[name] = [_sound(kind[0], item) for item in value if isinstance(item, dict)]
        elif value is not None:
            with contextlib.suppress(ValueError):
                sound[name] = typed(kind, value)
    return sound
