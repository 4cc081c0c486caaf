"""Recognize folders by the names of their files, for messages when a command gets a folder of another kind."""

import re
from pathlib import Path

from data_prep.common.errors import UnusableInput, UserError, working_directory

RUN = "a run folder"
DATA_SET = "a data set folder"
OTHER_FILES = "a folder of other files"
_UNFINISHED = "an unfinished data set folder"
_MOST_NAMED = 3


def folder_kind(path: Path) -> str:
    """The kind of `path` as a phrase, such as "a run folder", "an empty folder" or "a file"."""
    if not path.is_dir():
        return "a file"
    if is_run(path):
        return RUN
    if (path / "config.json").is_file():
        return "a Hugging Face model folder"
    if (path / "manifest.json").is_file():
        return "a checkpoint" if (path / "deepspeed").is_dir() else DATA_SET
    if (path / "shards").is_dir() or ((path / "prep").is_dir() and (path / "train").is_dir()):
        return DATA_SET if (path / "train" / "manifest.json").is_file() else _UNFINISHED
    for name, kind in (("study.json", "a study folder"), ("tokenizer.json", "a tokenizer folder")):
        if (path / name).is_file():
            return kind
    if _runs_in(path):
        return "a folder of runs"
    return OTHER_FILES if any(path.iterdir()) else "an empty folder"


def is_run(path: Path) -> bool:
    """Whether a run was started in this folder, even if the start was refused, or submitted to Slurm."""
    if any((path / name).is_file() for name in ("status.json", "journal.jsonl", "slurm/job.sh")):
        return True
    return (path / "checkpoints").is_dir() and any((path / name).is_file() for name in ("config.yaml", ".lock"))


def _runs_in(path: Path) -> list[Path]:
    return sorted(inner for inner in path.iterdir() if inner.is_dir() and is_run(inner))


def require_run(path: Path) -> None:
    """Raise UserError unless `path` is a run folder."""
    if not is_run(path):
        raise not_a(path, RUN, "Name a run folder (run.dir of the config).")


def not_a(path: Path, wanted: str, advice: str) -> UserError:
    """The error for a `path` that is not `wanted`, such as "a run folder". It names run folders near `path`."""
    try:
        at_step = re.fullmatch(r"(.+)@(\d+)", str(path))
        if at_step and not path.exists() and is_run(Path(at_step[1])):
            run, step = at_step.groups()
            return UserError(f"{path} does not exist. Name {run} with --step {step}, or its export of that step.")
        if not path.exists():
            return UserError(f"{path} does not exist{working_directory(path)}. {advice}")
        kind = folder_kind(path)
        if RUN in wanted and kind == "a folder of runs":
            runs = _runs_in(path)
            more = " ..." if len(runs) > _MOST_NAMED else ""
            advice = f"Name one of its runs: {', '.join(map(str, runs[:_MOST_NAMED]))}{more}"
        elif wanted == RUN and kind == "a checkpoint":
            advice = f"Name its run: {path.absolute().parent.parent}"
        elif wanted == DATA_SET and kind == _UNFINISHED:
            advice = "Finish it with `maskwright prep run`."
    except OSError as error:
        return UserError(f"{path} cannot be read: {error.strerror}.")
    # Paths of runs are to be copied, so they are not shortened.
    kind_of_error = UserError if wanted == RUN else UnusableInput
    return kind_of_error(f"{path} is {kind}, not {wanted}. {advice}")
