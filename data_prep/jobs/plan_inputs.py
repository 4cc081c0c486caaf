"""The inputs of a plan: recognize earlier inputs, add tasks for new ones, and let small files share tasks.

A group of small files is one input of the plan; `prep/files` has the list of its files, which never change. A file that
is added later is a separate input, or in a new group.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby, pairwise
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import make_folder, write_json
from data_prep.common.reading import read_json, unusable
from data_prep.common.urls import shown
from data_prep.jobs.preparation_plan import MAX_PLAN_BYTES, MAX_RANGES, NEW_OUT, Input, PlannedTask, PreparationPlan
from data_prep.sources import Examined, GroupedFile, SourceInput, examine_group

MAX_TASKS = 1_000_000  # each task has its own files
MIN_TASK_BYTES = 16 << 20
MAX_TASK_BYTES = 512 << 20  # fills a shard with uint16 ids
RANGE_BYTES = 4 << 30  # input for each range; of 1 to 2 million web pages
MAX_SINGLE = 256  # new files that share no task
_MIN_GROUP_BYTES = 1 << 20
_GROUPED = ("jsonl", "txt", "fasta", "parquet")  # types of files that share tasks

Examination = tuple[SourceInput, Examined]


def extend(
    plan: PreparationPlan, out: Path, given: Sequence[Examination], task_bytes: int | None = None
) -> tuple[PreparationPlan, list[str], list[list[GroupedFile]]]:
    """Add tasks for new inputs to the plan of OUT. Returns it, the location of each of its inputs, and all groups.

    `task_bytes` is the size of new tasks; the default gives a few hundred tasks. Raises UserError if an input of the
    plan, or a file of one of its groups, is not given or has changed.
    """
    total = sum(seen.bytes for _, seen in given)
    size = task_bytes or _task_size(total)
    if total > MAX_TASKS * size:
        raise UserError(
            f"Tasks of {size / 1e6:g} MB would be {total // size:,}; raise --task-mb to "
            f"{math.ceil(total / MAX_TASKS / 1e4) / 100:g} or more, or leave it out."
        )
    names = _display_names([source for source, _ in given])
    left: dict[tuple[str, str, int, str], list[int]] = {}  # not matched with the plan yet; equal ones, last first
    for number, (source, seen) in reversed(list(enumerate(given))):
        left.setdefault((source.source, source.kind, seen.bytes, seen.digest), []).append(number)

    def group(numbers: Sequence[int]) -> list[GroupedFile]:
        chosen = ((names[number], *given[number]) for number in numbers)
        return [GroupedFile(name, source.location, seen.bytes, seen.digest) for name, source, seen in chosen]

    inputs, tasks, locations = list(plan.inputs), list(plan.tasks), [""] * len(plan.inputs)
    groups: list[list[GroupedFile]] = []
    for place, old in sorted(enumerate(plan.inputs), key=lambda item: item[1].files == 1):  # groups first
        numbers = []
        for file in read_group(out, old) if old.files > 1 else [old]:
            same = left.get((old.source, old.kind, file.bytes, file.digest))
            if not same:
                raise UserError(
                    f"The input {file.name} that was prepared before has changed or is not given now; a data set can "
                    "only grow: give all earlier inputs unchanged, or choose a new --out folder."
                )
            numbers.append(same.pop())
        locations[place] = given[numbers[0]][0].location
        groups += [group(numbers)] if old.files > 1 else []
    new = sorted(number for same in left.values() for number in same)
    for numbers in _packed(new, given, task_bytes):
        (source, seen), name = given[numbers[0]], names[numbers[0]]
        if len(numbers) > 1:
            groups.append(group(numbers))
            seen, name = examine_group(groups[-1]), f"{name} and {len(numbers) - 1:,} more"
        tasks += [PlannedTask(len(inputs), *cut) for cut in cuts(seen, size)]
        inputs.append(Input(name, source.source, source.kind, seen.bytes, seen.digest, len(numbers)))
        locations.append(source.location)
    ranges = plan.ranges if plan.tasks else min(MAX_RANGES, 1 + total // RANGE_BYTES)
    return replace(plan, inputs=inputs, tasks=tasks, ranges=ranges), locations, groups


def _packed(new: Sequence[int], given: Sequence[Examination], task_bytes: int | None) -> list[list[int]]:
    """New inputs, in order: each alone or, of more than MAX_SINGLE files, in groups of a few hundred or more.

    Files of a group have one source and type, and follow each other. They have at most `task_bytes`, or one is alone.
    """
    files = [number for number in new if given[number][0].kind in _GROUPED]
    if len(files) <= MAX_SINGLE:
        return [[number] for number in new]
    total = sum(given[number][1].bytes for number in files)
    limit = task_bytes or min(_task_size(total), max(_MIN_GROUP_BYTES, total // MAX_SINGLE))
    groups = [[number] for number in new if given[number][0].kind not in _GROUPED]
    for _, alike in groupby(files, lambda number: (given[number][0].source, given[number][0].kind)):
        room = -1
        for number in alike:
            room -= given[number][1].bytes
            if room < 0:
                groups.append([])
                room = limit - given[number][1].bytes
            groups[-1].append(number)
    return sorted(groups)


def _task_size(input_bytes: int) -> int:
    """The default size of tasks: a few hundred for inputs of so many bytes."""
    return max(MIN_TASK_BYTES, min(MAX_TASK_BYTES, input_bytes // 256))


def cuts(examined: Examined, task_bytes: int) -> list[tuple[int, int, int]]:
    """Cut an input into ranges (first, last, bytes) of its units, in order, each of about `task_bytes`."""
    if examined.unit_bytes is None:
        count = math.ceil(examined.bytes / task_bytes)
        ends = [examined.bytes * part // max(1, count) for part in range(count + 1)]
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


def _display_names(inputs: Sequence[SourceInput]) -> list[str]:
    """The locations without their common parent folder, so that names do not change if that folder moves."""
    parts = [shown(given.location).split("/") for given in inputs]
    shared = 0
    while all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    return ["/".join(part[shared:]) for part in parts]


def write_groups(groups: Sequence[Sequence[GroupedFile]], out: Path) -> None:
    """Write the list of each group's files."""
    if groups:
        make_folder(out / "prep" / "files")
    for files in groups:
        write_json(_path(out, examine_group(files).digest), [asdict(file) for file in files])


def read_group(out: Path, planned: Input) -> list[GroupedFile]:
    """The files of an input of the plan. Raises UserError if the list is missing, damaged or another one."""
    path = _path(out, planned.digest)
    files: list[GroupedFile] = read_json(path, list[GroupedFile], MAX_PLAN_BYTES, hint=NEW_OUT)
    if len(files) != planned.files or examine_group(files).digest != planned.digest:
        raise unusable(path, "it lists other files than the plan", NEW_OUT)
    return files


def _path(out: Path, digest: str) -> Path:
    return out / "prep" / "files" / f"{digest}.json"
