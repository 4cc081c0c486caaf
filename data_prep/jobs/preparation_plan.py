"""The plan of a preparation: inputs, the tasks they are cut into, and all that decides the output.

A plan only grows: inputs that are added later get tasks with new numbers, so that the shards of the old ones stay as
they are. A task's hash is what its record must agree with.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from data_prep.cleaning import Cleaning
from data_prep.errors import MissingFile, UserError
from data_prep.files import refuse_file, write_json
from data_prep.format import TokenizerInfo
from data_prep.format.shard_format import BLOCK_TOKENS, FORMAT_VERSION, SHARD_BYTES, TARGETS_VERSION, check_tokenizer
from data_prep.jobs.input_locations import place_path
from data_prep.reading import read_json, unusable
from data_prep.reading.folder_kinds import kind_of, not_a
from data_prep.sources import Examined, Options, SourceInput
from data_prep.urls import shown

MAX_PLAN_BYTES = 1 << 30
_ANOTHER_OUT = "choose a new --out folder"
LEAST_TASK_BYTES = 16 << 20
MOST_CUTS = 1_000_000  # into tasks, which have files and records each
MOST_TASK_BYTES = 512 << 20  # fills a shard with uint16 ids


@dataclass(frozen=True)
class Input:
    """One input, by its content; `name` is for people, `source` the user's name for inputs of its kind."""

    name: str
    source: str
    kind: str
    bytes: int
    digest: str


@dataclass(frozen=True)
class InputRange:
    """A unit of work that one process does alone: the range [first, last) of an input's units, about `bytes` of it."""

    input: int
    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class PreparationSettings:
    """What decides the output besides inputs and tokenizer; `valid_fraction` of the documents go to OUT/valid.

    `evaluation_sha256` is that of the n-grams that documents must not contain (OUT/prep/evaluation.npy), if any.
    """

    reading: Options = field(default_factory=Options)
    cleaning: Cleaning = field(default_factory=Cleaning)
    evaluation_sha256: str | None = None
    deduplicate: Literal["none", "exact", "near"] = "none"
    near_threshold: float = 0.8
    valid_fraction: float = 0.0
    block_tokens: int = BLOCK_TOKENS
    shard_bytes: int = SHARD_BYTES
    format_version: int = FORMAT_VERSION

    @property
    def pairs(self) -> bool:
        """Whether documents come with the wrong texts that they correct."""
        return self.reading.wrong_field is not None

    @property
    def data_version(self) -> int:
        """The format version of the data sets."""
        return TARGETS_VERSION if self.pairs else FORMAT_VERSION


@dataclass(frozen=True)
class PreparationPlan:
    """Work for any number of processes; equal plans give byte-identical data sets."""

    inputs: list[Input]
    tasks: list[InputRange]
    tokenizer: TokenizerInfo
    settings: PreparationSettings

    @property
    def splits(self) -> list[str]:
        """Folders of the data sets, relative to OUT."""
        return ["train", "valid"] if self.settings.valid_fraction else ["."]

    def task_hash(self, task: int) -> str:
        """SHA-256 of all that decides the task's output, other tasks' documents (deduplication) excepted."""
        unit = self.tasks[task]
        source = self.inputs[unit.input]
        settings = asdict(self.settings)
        if not self.settings.pairs:
            del settings["reading"]["wrong_field"]  # so that what was prepared before there was one stays done
        content = {
            "input": [source.kind, source.bytes, source.digest, unit.first, unit.last],
            "tokenizer": self.tokenizer.sha256,
            "settings": settings,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def tasks_of_inputs(self) -> list[range]:
        """The numbers of each input's tasks, which follow one another."""
        ranges = [range(0)] * len(self.inputs)
        for number, task in enumerate(self.tasks):
            first = ranges[task.input].start if ranges[task.input] else number
            ranges[task.input] = range(first, number + 1)
        return ranges


def extend(
    plan: PreparationPlan, found: Sequence[SourceInput], examined: Sequence[Examined], task_bytes: int | None = None
) -> tuple[PreparationPlan, list[str]]:
    """The plan with tasks for the inputs that it does not have yet, and the location of each of its inputs.

    `task_bytes` is the size of new tasks, by default such that there are a few hundred. Raises UserError if an input of
    the plan is not among `found`, or no longer has the same content.
    """
    sizes = sum(one.bytes for one in examined)
    task_bytes = task_bytes or max(LEAST_TASK_BYTES, min(MOST_TASK_BYTES, sizes // 256))
    if sizes > MOST_CUTS * task_bytes:
        raise UserError(
            f"Tasks of {task_bytes / 1e6:g} MB would be {sizes // task_bytes:,}; raise --task-mb to "
            f"{math.ceil(sizes / MOST_CUTS / 1e4) / 100:g} or more, or leave it out."
        )
    inputs, tasks = list(plan.inputs), list(plan.tasks)
    locations: list[str | None] = [None] * len(inputs)
    awaited: dict[Any, list[int]] = {}
    for number, old in reversed(list(enumerate(inputs))):
        awaited.setdefault((old.source, old.kind, old.bytes, old.digest), []).append(number)
    for one, seen, name in zip(found, examined, _names(found), strict=True):
        if same := awaited.get((one.source, one.kind, seen.bytes, seen.digest)):
            locations[same.pop()] = one.location
            continue
        tasks += [InputRange(len(inputs), *cut) for cut in cuts(seen, task_bytes)]
        inputs.append(Input(name, one.source, one.kind, seen.bytes, seen.digest))
        locations.append(one.location)
    for old, location in zip(inputs, locations, strict=True):
        if location is None:
            raise UserError(
                f"The input {old.name} that was prepared before has changed or is not given now; a data set can only "
                "grow: give all of its inputs as they were, or choose a new --out folder."
            )
    return replace(plan, inputs=inputs, tasks=tasks), [str(location) for location in locations]


def cuts(examined: Examined, task_bytes: int) -> list[tuple[int, int, int]]:
    """An input as ranges (first, last, bytes) of its units, in order, each of about `task_bytes`."""
    if examined.unit_bytes is None:
        count = max(1, math.ceil(examined.bytes / task_bytes)) if examined.bytes else 0
        ends = [examined.bytes * part // count for part in range(count + 1)] if count else []
        return [(first, last, last - first) for first, last in pairwise(ends)]
    ranges = []
    first = size = 0
    for unit, unit_bytes in enumerate(examined.unit_bytes):
        if size and size + unit_bytes > task_bytes:
            ranges.append((first, unit, size))
            first, size = unit, 0
        size += unit_bytes
    if first < len(examined.unit_bytes):
        ranges.append((first, len(examined.unit_bytes), size))
    return ranges


def _names(found: Sequence[SourceInput]) -> list[str]:
    """The locations without the folders that all of them share: the same wherever that folder lies."""
    parts = [shown(one.location).split("/") for one in found]
    shared = 0
    while all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    return ["/".join(part[shared:]) for part in parts]


def plan_path(out: Path) -> Path:
    return out / "prep" / "plan.json"


def evaluation_path(out: Path) -> Path:
    """Where the n-grams that documents must not contain are kept."""
    return out / "prep" / "evaluation.npy"


def new_evaluation_path(out: Path) -> Path:
    """Where they are until it is known that they are those of the plan."""
    return out / "prep" / "evaluation.npy.new"


def read_plan(out: Path) -> PreparationPlan:
    """The plan of OUT; raises UserError where there is none or it is damaged."""
    path = plan_path(out)
    try:
        plan: PreparationPlan = read_json(path, PreparationPlan, MAX_PLAN_BYTES, hint=_ANOTHER_OUT)
        _check(plan)
    except MissingFile:
        if kind_of(out) in ("an empty folder", "an unfinished data set folder"):
            raise UserError(f"{out} has no plan ({path}); make one with `maskwright prep plan`.") from None
        raise not_a(out, "the folder of a plan", "Name the --out of `maskwright prep plan`.") from None
    except ValueError as error:
        raise unusable(path, str(error), _ANOTHER_OUT) from None
    return plan


def _check(plan: PreparationPlan) -> None:
    """Raise ValueError unless the parts of a plan fit each other."""
    check_tokenizer(plan.tokenizer)
    for task in plan.tasks:
        if task.input >= len(plan.inputs) or task.first > task.last:
            raise ValueError("a task is not a part of an input")
    if plan.settings.valid_fraction > 1 or plan.settings.near_threshold > 1:
        raise ValueError("a share in its settings is greater than 1")


def check_out(out: Path) -> bool:
    """Whether OUT is a preparation that was begun; False for a new or empty folder.

    Raises UserError if OUT or a folder above it is a file, or OUT holds other files.
    """
    refuse_file(out)
    if plan_path(out).exists() or place_path(out).exists():
        return True
    prep = out / "prep"
    own = {"prep"} if prep.is_dir() else set()
    strangers = [entry.name for entry in _entries(out) if entry.name not in own]
    strangers += [f"prep/{entry.name}" for entry in _entries(prep) if not _is_beginning(entry.name)]
    if strangers:
        raise UserError(f"{out} is not empty (it has {min(strangers)}); choose a new --out folder.")
    return False


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_beginning(name: str) -> bool:
    """Whether a file of OUT/prep may be from a preparation that ended before it had noted its place."""
    return name in ("lock", "tokenizer", new_evaluation_path(Path()).name) or name.endswith(".tmp")


def open_plan(out: Path, tokenizer: TokenizerInfo, settings: PreparationSettings) -> PreparationPlan:
    """The plan of OUT, or an empty one where there is none.

    Raises UserError if OUT was begun with another tokenizer or other settings, naming them.
    """
    if not plan_path(out).exists():
        return PreparationPlan([], [], tokenizer, settings)
    plan = read_plan(out)
    before, now = _options(plan.settings), _options(settings)
    differing = [name for name in before if before[name] != now[name]]
    kept = ["another --tokenizer"] if plan.tokenizer != tokenizer else []
    kept += [_written(name, before[name]) for name in differing]
    if kept:
        given = " and ".join(_written(name, now[name]) for name in differing if name != "evaluation_sha256")
        command = f"; the command has {given}" if given else ""
        raise UserError(f"{out} was prepared with {' and '.join(kept)}{command}. Use the same, or another --out.")
    return plan


def write_plan(plan: PreparationPlan, out: Path) -> None:
    """Make the plan OUT's; a plan that is there already must be the beginning of it."""
    if not plan_path(out).exists() or read_plan(out) != plan:
        write_json(plan_path(out), asdict(plan))


def _options(settings: Any) -> dict[str, Any]:
    """The values of all settings, nested ones included, by name."""
    found: dict[str, Any] = {}
    for one in fields(settings):
        value = getattr(settings, one.name)
        found |= _options(value) if hasattr(value, "__dataclass_fields__") else {one.name: value}
    return found


def _written(name: str, value: Any) -> str:
    """A setting as an option of the command: --min-characters 20, or `no --id-field`."""
    if name == "evaluation_sha256":
        return f"{'other' if value else 'no'} --decontaminate files"
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return f"no {option}"
    return option if value is True else f"{option} {value}"
