"""Documents with the same id: each task keeps hashes of its ids in OUT/prep/ids, and the merge compares them."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash

from data_prep.array_files import load_integers, save_array
from data_prep.files import make_folder, sha256_file
from data_prep.format import Dataset
from data_prep.jobs.preparation_plan import PreparationPlan

MAX_BYTES = 1 << 28  # of hashes that are sorted together


def hash_of(id: str | int | None) -> int:
    """64 bits of a document's id; the number 7 and the text "7" are different ids."""
    return xxhash.xxh3_64_intdigest(id.encode() if isinstance(id, str) else f"\0{id}".encode())


def ids_path(out: Path, task: int) -> Path:
    """Where the hashes of a task's ids are kept."""
    return out / "prep" / "ids" / f"{task:05d}.npy"


def save_hashes(out: Path, task: int, hashes: Sequence[int]) -> str:
    """Keep the hashes of a task's ids, sorted; the SHA-256 of the file."""
    path = ids_path(out, task)
    make_folder(path.parent)
    save_array(path, np.sort(np.array(hashes, dtype=np.uint64)))
    return sha256_file(path)


def repeated_ids(out: Path, tasks: Sequence[int], max_bytes: int = MAX_BYTES) -> tuple[int, int | None]:
    """How many documents of these tasks have the id of an earlier one, and the smallest hash of such an id.

    More documents than `max_bytes` of hashes are compared in several passes over the files, a range of hashes each.
    """
    total = sum(len(load_integers(ids_path(out, task), 1)) for task in tasks)
    passes = max(1, math.ceil(8 * total / max_bytes))
    count, example = 0, None
    for number in range(passes):
        first, last = (np.uint64((number + end) * ((1 << 64) - 1) // passes) for end in (0, 1))
        found = np.sort(np.concatenate([*_hashes_between(out, tasks, first, last, number + 1 == passes)]))
        same = found[1:][found[1:] == found[:-1]]
        count += len(same)
        if example is None and len(same):
            example = int(same[0])
    return count, example


def _hashes_between(
    out: Path, tasks: Sequence[int], first: np.uint64, last: np.uint64, to_the_end: bool
) -> Iterator[np.ndarray]:
    for task in tasks:
        hashes = load_integers(ids_path(out, task), 1)
        begin, end = np.searchsorted(hashes, np.array([first, last]))
        yield np.array(hashes[begin : len(hashes) if to_the_end else end])


def id_note(plan: PreparationPlan, tasks: Sequence[int], out: Path) -> str | None:
    """A warning for ids that occur more than once in these tasks of a finished preparation; None if all ids differ."""
    if not tasks:
        return None
    count, example = repeated_ids(out, tasks)
    if example is None:
        return None
    having = [task for task in tasks if _has(out, task, example)]
    names = list(dict.fromkeys(plan.inputs[plan.tasks[task].input].name for task in having))
    documents = "1 document has" if count == 1 else f"{count:,} documents have"
    return (
        f"warning: {documents} the id of another one, for example {_id_of(plan, having[0], example, out)!r} in "
        f"{' and '.join(names[:2])}. If ids must be unique, correct the input or --id-field and choose another --out."
    )


def _has(out: Path, task: int, hash: int) -> bool:
    hashes = load_integers(ids_path(out, task), 1)
    place = int(np.searchsorted(hashes, np.uint64(hash)))
    return place < len(hashes) and int(hashes[place]) == hash


def _id_of(plan: PreparationPlan, task: int, hash: int, out: Path) -> str | int | None:
    """The id with this hash, from the blocks of a task."""
    for split in plan.splits:
        dataset, block = Dataset(out / split), 0
        for shard in dataset.manifest.shards:
            if int(shard.name.split("-")[0]) == task:
                for number in range(block, block + shard.blocks):
                    if found := [id for id in dataset.ids(number) or [] if hash_of(id) == hash]:
                        return found[0]
            block += shard.blocks
    return None
