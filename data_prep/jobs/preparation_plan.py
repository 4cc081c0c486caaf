"""The plan of a preparation: inputs, tasks, tokenizer and settings (`prep/plan.json`). It decides the output.

A plan only grows: inputs that are added later get tasks with new numbers, so existing shards do not change. Where the
inputs are and how to run may change each time, and are in `prep/place.json`.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from data_prep.cleaning import Cleaning
from data_prep.common.errors import MissingFile, UserError
from data_prep.common.files import write_json
from data_prep.common.reading import PathText, read_json, unusable
from data_prep.format import ShardWriter, TokenizerInfo
from data_prep.sources import Options
from data_prep.storage import not_a

MAX_PLAN_BYTES = 1 << 30
MAX_RANGES = 1024  # of keys; a task that runs reads a file of each
NEW_OUT = "choose a new --out folder"
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Input:
    """One input, identified by its content: a file, or a group of `files` (see plan_inputs.py).

    `name` is for display; `source` is the source name that the user gave.
    """

    name: str
    source: str
    kind: str
    bytes: int
    digest: str
    files: int = 1


@dataclass(frozen=True)
class PlannedTask:
    """One task: units [first, last) of an input, about `bytes` long."""

    input: int
    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class PreparationSettings:
    """Settings that decide the output, in addition to inputs and tokenizer.

    `valid_fraction` of the documents go to OUT/valid. `evaluation_sha256` is the SHA-256 of the n-grams that documents
    must not contain (OUT/prep/evaluation.npy), or None. Translation pairs of more than `max_pair_tokens` are left out.
    """

    reading: Options = field(default_factory=Options)
    cleaning: Cleaning = field(default_factory=Cleaning)
    evaluation_sha256: str | None = None
    deduplicate: Literal["none", "exact", "near"] = "none"
    near_threshold: float = 0.7  # 16 bands of 8 values find 95% of pairs at 0.8; FineWeb's 14 of 8 find 92%
    valid_fraction: float = 0.0
    block_tokens: int = ShardWriter.BLOCK_TOKENS
    shard_bytes: int = ShardWriter.SHARD_BYTES
    format_version: int = 1  # raise it when shards change, so that all tasks run again
    max_pair_tokens: int = 510
    near_unit: Literal["words", "characters"] = "words"

    @property
    def corrects(self) -> bool:
        """Whether each document comes with the wrong text that it corrects."""
        return self.reading.wrong_field is not None


@dataclass(frozen=True)
class PreparationPlan:
    """The work of a preparation, for any number of processes. Equal plans give byte-identical data sets.

    `ranges` is the number of parts of the search for duplicates. It changes no data set.
    """

    inputs: list[Input]
    tasks: list[PlannedTask]
    tokenizer: TokenizerInfo
    settings: PreparationSettings
    ranges: int = 1

    @property
    def splits(self) -> list[str]:
        """Folders of the data sets, relative to OUT."""
        return ["train", "valid"] if self.settings.valid_fraction else ["."]

    @property
    def range_bytes(self) -> int:
        """The bytes of all inputs, divided by the number of ranges."""
        return sum(task.bytes for task in self.tasks) // self.ranges

    def task_hash(self, task: int) -> str:
        """SHA-256 of everything that decides the task's output, except other tasks' documents (deduplication)."""
        unit = self.tasks[task]
        source = self.inputs[unit.input]
        content = {
            "input": [source.kind, source.bytes, source.digest, unit.first, unit.last],
            "tokenizer": self.tokenizer.sha256,
            "settings": asdict(self.settings),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def tasks_of_inputs(self) -> list[range]:
        """The task numbers of each input, which are consecutive."""
        ranges = [range(0)] * len(self.inputs)
        for number, task in enumerate(self.tasks):
            first = ranges[task.input].start if ranges[task.input] else number
            ranges[task.input] = range(first, number + 1)
        return ranges


def open_plan(out: Path, tokenizer: TokenizerInfo, settings: PreparationSettings) -> PreparationPlan:
    """The plan of OUT, or a new empty plan.

    Raises UserError, naming the differences, if OUT was prepared with another tokenizer or other settings.
    """
    if not plan_path(out).exists():
        return PreparationPlan([], [], tokenizer, settings)
    plan = read_plan(out)
    before, now = _options(plan.settings), _options(settings)
    differing = [name for name in before if before[name] != now[name]]
    stored = ["another --tokenizer"] if plan.tokenizer != tokenizer else []
    stored += [_written(name, before[name]) for name in differing]
    if stored:
        given = " and ".join(_written(name, now[name]) for name in differing if name != "evaluation_sha256")
        command = f"; the command has {given}" if given else ""
        raise UserError(f"{out} was prepared with {' and '.join(stored)}{command}. Use the same, or another --out.")
    return plan


def planned_near_threshold(out: Path) -> float:
    """The near_threshold of OUT's plan, or the default of a new plan: earlier versions had another default."""
    return read_plan(out).settings.near_threshold if plan_path(out).exists() else PreparationSettings.near_threshold


def _options(settings: Any) -> dict[str, Any]:
    """The values of all settings, nested ones included, by name."""
    values: dict[str, Any] = {}
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        values |= _options(value) if hasattr(value, "__dataclass_fields__") else {setting.name: value}
    return values


def _written(name: str, value: Any) -> str:
    """Format a setting as a command-line option: `--min-characters 20`, or `no --id-field`."""
    if name == "evaluation_sha256":
        return f"{'other' if value else 'no'} --decontaminate files"
    if name == "filters":
        return " ".join(f"--filter {text}" for text in value) or "no --filter"
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return f"no {option}"
    return option if value is True else f"{option} {value}"


def plan_path(out: Path) -> Path:
    return out / "prep" / "plan.json"


def read_plan(out: Path) -> PreparationPlan:
    """The plan of OUT; raises UserError if it is missing or damaged."""
    path = plan_path(out)
    try:
        plan: PreparationPlan = read_json(path, PreparationPlan, MAX_PLAN_BYTES, hint=NEW_OUT)
        _check(plan)
    except MissingFile:
        raise not_a(out, "the folder of a plan", "Name the --out of `maskwright prep run --plan-only`.") from None
    except ValueError as error:
        raise unusable(path, str(error), NEW_OUT) from None
    return plan


def _check(plan: PreparationPlan) -> None:
    """Raise ValueError unless the parts of a plan are consistent."""
    plan.tokenizer.check()
    if any(task.input >= len(plan.inputs) or task.first > task.last for task in plan.tasks):
        raise ValueError("a task is not a part of an input")
    if any(given.files > 1 and not _DIGEST.fullmatch(given.digest) for given in plan.inputs):  # it names a file
        raise ValueError("the digest of a group of files is not an XXH3 hash in hexadecimal")
    if plan.settings.valid_fraction > 1 or plan.settings.near_threshold > 1:
        raise ValueError("a share in its settings is greater than 1")
    if not 1 <= plan.ranges <= MAX_RANGES:
        raise ValueError(f"ranges is not 1 to {MAX_RANGES}")


def write_plan(plan: PreparationPlan, out: Path) -> None:
    if not plan_path(out).exists() or read_plan(out) != plan:
        write_json(plan_path(out), asdict(plan))


@dataclass(frozen=True)
class InputLocations:
    """Locations of the plan's inputs, in the plan's order, and run options.

    `cache` is the cache folder for remote inputs, of at most `cache_bytes`. `allow_unreadable` is the share of the
    bytes that may be left out, of unreadable rows and of `unread_files`: the files in named folders without a known
    type, with their bytes.
    """

    locations: list[PathText]
    cache: PathText
    cache_bytes: int
    allow_unreadable: float
    unread_files: dict[str, int]


def locations_path(out: Path) -> Path:
    """Path of the first file that a preparation writes. It identifies OUT as the folder of a preparation."""
    return out / "prep" / "place.json"


def read_locations(out: Path) -> InputLocations:
    """The locations of the last `prep run`; raises UserError if the file is missing or damaged."""
    hint = "run `maskwright prep run --plan-only` again"
    return read_json(locations_path(out), InputLocations, MAX_PLAN_BYTES, hint)


def evaluation_path(out: Path) -> Path:
    """Path of the n-grams that documents must not contain."""
    return out / "prep" / "evaluation.npy"


def check_out(out: Path) -> bool:
    """Whether OUT holds an earlier preparation; False for a new or empty folder.

    Raises UserError if OUT holds other files.
    """
    if plan_path(out).exists() or locations_path(out).exists():
        return True
    prep, early = out / "prep", ("lock", "tokenizer", "evaluation.npy.new")  # the last one is of earlier versions
    others = [name for name in _names_in(out) if name != "prep" or not prep.is_dir()]
    others += [f"prep/{name}" for name in _names_in(prep) if name not in early and not name.endswith(".tmp")]
    if others:
        raise UserError(f"{out} is not empty (it has {min(others)}); choose a new --out folder.")
    return False


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []
