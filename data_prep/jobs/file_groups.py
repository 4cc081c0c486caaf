"""Groups of small files that share a task. A group is one input of the plan; `prep/files` has the list of its files.

The files of a group never change: a file that is added later is a separate input, or in a new group.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from data_prep.common.files import make_folder, write_json
from data_prep.common.reading import read_json, unusable
from data_prep.jobs.preparation_plan import MAX_PLAN_BYTES, Input, PreparationPlan, changed, display_names, task_size
from data_prep.sources import Examined, GroupedFile, SourceInput, examine_group

MAX_SINGLE = 256  # new files that share no task
_MIN_BYTES = 1 << 20
_KINDS = ("jsonl", "txt", "fasta", "parquet")
_NEW_OUT = "choose a new --out folder"

Examination = tuple[SourceInput, Examined]
_Identity = tuple[str, str, int, str]  # source, kind, bytes and digest


def group_files(
    plan: PreparationPlan, out: Path, given: Sequence[Examination], task_bytes: int | None
) -> tuple[list[Examination], list[list[GroupedFile]]]:
    """The inputs with many small files as groups; and the groups, of the plan and new ones.

    More than MAX_SINGLE new files become groups of up to `task_bytes`, or by default a few hundred groups. Files of a
    group follow each other in `given`, and have the same source and type. Raises UserError if a file of an earlier
    group is not given, or has changed.
    """
    left: dict[_Identity, list[int]] = {}
    for number, (source, seen) in reversed(list(enumerate(given))):
        left.setdefault(_identity(source, seen), []).append(number)
    groups: dict[int, list[int]] = {}  # by their first file
    for planned in (planned for planned in plan.inputs if planned.files > 1):
        numbers = []
        for file in read_group(out, planned):
            same = left.get((planned.source, planned.kind, file.bytes, file.digest))
            if not same:
                raise changed(file.name)
            numbers.append(same.pop())
        groups[numbers[0]] = numbers
    single = Counter((old.source, old.kind, old.bytes, old.digest) for old in plan.inputs if old.files == 1)
    new = []
    for number in sorted(number for same in left.values() for number in same):
        identity = _identity(*given[number])
        if single[identity]:
            single[identity] -= 1
        elif given[number][0].kind in _KINDS:
            new.append(number)
    if len(new) > MAX_SINGLE:
        sizes = [given[number][1].bytes for number in new]
        limit = task_bytes or min(task_size(sum(sizes)), max(_MIN_BYTES, sum(sizes) // MAX_SINGLE))
        groups |= {numbers[0]: numbers for numbers in _packed(new, given, limit) if len(numbers) > 1}
    inside = {number for numbers in groups.values() for number in numbers}
    names = display_names([source for source, _ in given])
    results: list[Examination] = []
    found: list[list[GroupedFile]] = []
    for number, (source, seen) in enumerate(given):
        if number in groups:
            chosen = [(names[member], *given[member]) for member in groups[number]]
            files = [GroupedFile(name, its.location, seen.bytes, seen.digest) for name, its, seen in chosen]
            found.append(files)
            results.append((source._replace(files=len(files)), examine_group(files)))
        elif number not in inside:
            results.append((source, seen))
    return results, found


def _packed(numbers: Sequence[int], given: Sequence[Examination], limit: int) -> list[list[int]]:
    """Consecutive files of one source and type, in groups of at most `limit` bytes. A larger file is alone."""
    groups: list[list[int]] = []
    for _, alike in groupby(numbers, lambda number: (given[number][0].source, given[number][0].kind)):
        size = limit + 1
        for number in alike:
            size += given[number][1].bytes
            if size > limit:
                groups.append([])
                size = given[number][1].bytes
            groups[-1].append(number)
    return groups


def _identity(source: SourceInput, seen: Examined) -> _Identity:
    return source.source, source.kind, seen.bytes, seen.digest


def write_groups(groups: Sequence[Sequence[GroupedFile]], out: Path) -> None:
    """Write the list of each group's files."""
    if groups:
        make_folder(out / "prep" / "files")
    for files in groups:
        write_json(_path(out, examine_group(files).digest), [asdict(file) for file in files])


def read_group(out: Path, planned: Input) -> list[GroupedFile]:
    """The files of an input of the plan. Raises UserError if the list is missing, damaged or another one."""
    path = _path(out, planned.digest)
    files: list[GroupedFile] = read_json(path, list[GroupedFile], MAX_PLAN_BYTES, hint=_NEW_OUT)
    if len(files) != planned.files or examine_group(files).digest != planned.digest:
        raise unusable(path, "it lists other files than the plan", _NEW_OUT)
    return files


def _path(out: Path, digest: str) -> Path:
    return out / "prep" / "files" / f"{digest}.json"
