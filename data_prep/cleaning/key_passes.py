"""Find keys that occurred before: in memory with a hash table, in files range by range.

A key file is a section file with a section for each range of the keys. A part holds keys, uint64 [n, columns], then the
index of the document of each, uint32 [n].
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash

from data_prep.cleaning.arrays import npy_bytes
from data_prep.cleaning.near_duplicates import NgramUnit, signatures
from data_prep.cleaning.section_files import read_section, section_size, section_writer
from data_prep.cleaning.word_hashes import mix
from data_prep.common.errors import DamagedData, UserError
from data_prep.common.files import write_file

_BYTES_A_KEY = 128  # measured working memory of a pass
_PART_KEYS = 1 << 20  # keys that are sorted by range and written together


@contextlib.contextmanager
def key_writer(
    path: Path, ranges: int, threshold: float | None, unit: NgramUnit = "words"
) -> Iterator[Callable[[Sequence[str]], None]]:
    """A function that adds the keys of texts to a key file for `find_repeats`.

    A key is a hash of the whole text, two columns. With a `threshold`, the keys of a text are its MinHash bands for
    this similarity of n-grams of the unit, one column; a text without an n-gram has none.
    """
    pending: list[tuple[np.ndarray, np.ndarray]] = []
    documents = 0
    with section_writer(path, ranges) as add_parts:

        def write() -> None:
            keys, owners = (np.concatenate(arrays) for arrays in zip(*pending, strict=True))
            pending.clear()
            add_parts(_grouped(keys, owners, ranges))

        def add(texts: Sequence[str]) -> None:
            nonlocal documents
            keys, owners = _keys(texts, threshold, unit)
            pending.append((keys, owners + documents))
            documents += len(texts)
            if sum(len(keys) for keys, _ in pending) >= _PART_KEYS:
                write()

        yield add
        if pending:
            write()


def _keys(texts: Sequence[str], threshold: float | None, unit: NgramUnit) -> tuple[np.ndarray, np.ndarray]:
    """Keys, uint64 [n, columns], and the index of the text of each, int64 [n]."""
    if threshold is None:
        return document_hashes(texts), np.arange(len(texts))
    bands = signatures(texts, threshold, unit)
    owners, columns = np.nonzero(bands)
    return bands[owners, columns][:, None], owners


def _grouped(keys: np.ndarray, owners: np.ndarray, ranges: int) -> Iterator[bytes]:
    """The part of each range. In a part, documents are in order."""
    numbers = _range_of(keys, ranges)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=ranges))
    for start, end in pairwise([0, *ends.tolist()]):
        chosen = order[start:end]
        yield keys[chosen].astype("<u8").tobytes() + owners[chosen].astype("<u4").tobytes()


def _range_of(keys: np.ndarray, ranges: int) -> np.ndarray:
    """The range of each key by its first 32 bits, int64 [n]: 0 to `ranges` - 1, each of about equal size."""
    return ((keys[:, 0] >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32)).astype(np.int64)


def document_hashes(texts: Sequence[str]) -> np.ndarray:
    """xxh3_128 of the UTF-8 of each text, high half first, uint64 [n_texts, 2]."""
    digest = xxhash.xxh3_128_digest
    digests = b"".join([digest(text.encode("utf-8", "surrogatepass")) for text in texts])
    return np.frombuffer(digests, dtype=">u8").reshape(-1, 2).astype(np.uint64)


def first_index(keys: np.ndarray) -> np.ndarray:
    """For each row of uint64 [n, columns] the index of the first equal row, int64 [n], in expected time O(n).

    A slot of the hash table keeps its earliest row. Rows that differ from the row in their slot are hashed again.
    """
    first = np.arange(len(keys), dtype=np.int64)
    rows, unsolved, attempt = first.copy(), keys, 0
    while len(rows):
        multipliers = mix(np.arange(1, keys.shape[1] + 1, dtype=np.uint64) + np.uint64(attempt << 8)) | np.uint64(1)
        bits = (2 * len(rows)).bit_length()
        products = unsolved[:, 0] * multipliers[0] if keys.shape[1] == 1 else unsolved @ multipliers
        slots = (products >> np.uint64(64 - bits)).astype(np.int64)
        table = np.full(1 << bits, len(keys), dtype=np.int64)
        np.minimum.at(table, slots, rows)
        leaders = table[slots]
        other = keys[leaders, 0] != unsolved[:, 0]
        for column in range(1, keys.shape[1]):
            other |= keys[leaders, column] != unsolved[:, column]
        first[rows] = leaders
        rows, unsolved, attempt = rows[other], unsolved[other], attempt + 1
    return first


@dataclass(frozen=True)
class KeyRange:
    """A range of the keys of all tasks. `files` and `documents`: the key file and number of documents of each task."""

    files: Sequence[Path]
    documents: Sequence[int]
    columns: int
    number: int
    ranges: int


def find_repeats(
    keys: KeyRange, drop_file: Path, max_bytes: int, report: Callable[[float], None] = lambda done: None
) -> None:
    """Write the documents with a key of a range that an earlier document has.

    `drop_file` becomes a section file with a section for each task: sorted indices of documents, uint32 [n_dropped].
    Later documents have no influence, so appended tasks change no earlier result. For the same reason, clusters of
    near duplicates are not merged: a document that resembles no earlier one stays, even if a later one links it to a
    cluster.

    Takes expected time O(keys), plus O(keys x passes) for reading, with 256 x keys / max_bytes passes over the range.
    Copies of a key need no memory. A bitmap of all documents takes a part of `max_bytes`. Calls `report` with the share
    that is done after each file. Raises DamagedData for an invalid file, UserError if `max_bytes` is too small.
    """
    starts = np.cumsum([0, *(-(-count // 8) for count in keys.documents)]).tolist()
    capacity = (max_bytes - starts[-1]) // _BYTES_A_KEY
    if capacity < 2:
        least = (2 * starts[-1] + (100 << 20)) / 1e9
        raise UserError(f"{max_bytes / 1e9:g} GB are too little for so many documents; use --memory-gb {least:.1f}.")
    dropped = np.zeros(starts[-1], np.uint8)
    n_keys = sum(section_size(path, keys.number) for path in keys.files) // (8 * keys.columns + 4)
    passes = -(-2 * n_keys // capacity) or 1
    for part in range(passes):
        current = _Pass(dropped, capacity)
        for task, start in enumerate(starts[:-1]):
            for values, owners in _stored_keys(keys, task):
                chosen = _range_of(values, keys.ranges * passes) == keys.number * passes + part
                current.add(values[chosen], owners[chosen] + 8 * start)
            report((part + (task + 1) / len(keys.files)) / passes)
        current.compact()
    with section_writer(drop_file, len(keys.files)) as add_parts:
        bits = (np.unpackbits(dropped[start:end], bitorder="little") for start, end in pairwise(starts))
        add_parts(np.flatnonzero(one).astype("<u4").tobytes() for one in bits)


def _stored_keys(keys: KeyRange, task: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys, uint64 [n, columns], and the indices of their documents, int64 [n], of each part of a task."""
    for data in read_section(keys.files[task], keys.number):
        count, rest = divmod(len(data), 8 * keys.columns + 4)
        values = np.frombuffer(data, "<u8", count * keys.columns).reshape(-1, keys.columns)
        owners = np.frombuffer(data, "<u4", count, values.nbytes).astype(np.int64)
        if rest or (owners >= keys.documents[task]).any():
            raise DamagedData(f"{keys.files[task]} has keys of other documents.")
        yield values, owners


def join_drops(range_files: Sequence[Path], task: int, drop_file: Path) -> np.ndarray:
    """Write and return the documents that a task drops by any range: sorted indices, uint32 [n_dropped].

    Raises DamagedData if a file of a range is missing or damaged, or was written before the task was planned.
    """
    parts = []
    for path in range_files:
        found = list(read_section(path, task))
        if len(found) != 1 or len(found[0]) % 4:
            raise DamagedData(f"{path} has no list of documents for task {task}.")
        parts.append(np.frombuffer(found[0], "<u4"))
    indices = np.unique(np.concatenate(parts))
    write_file(drop_file, npy_bytes(indices))
    return indices


class _Pass:
    """The distinct keys of one pass so far, and pending keys that are compared with them in batches."""

    def __init__(self, dropped: np.ndarray, capacity: int) -> None:
        self.dropped, self.capacity = dropped, capacity
        self.keys: list[np.ndarray] = []  # the distinct keys, then the pending ones
        self.documents: list[np.ndarray] = []  # the first document of each key
        self.pending = 0

    def add(self, keys: np.ndarray, documents: np.ndarray) -> None:
        step = max(1, self.capacity // 4)
        for start in range(0, len(keys), step):
            self.keys.append(keys[start : start + step])
            self.documents.append(documents[start : start + step])
            self.pending += len(self.keys[-1])
            if self.pending >= self.capacity // 2:
                self.compact()

    def compact(self) -> None:
        if not self.pending:
            return
        keys, documents = np.concatenate(self.keys), np.concatenate(self.documents)
        first = first_index(keys)
        repeats = documents[documents[first] != documents]  # a document can have a key twice
        np.bitwise_or.at(self.dropped, repeats >> 3, (1 << (repeats & 7)).astype(np.uint8))
        distinct = first == np.arange(len(keys))
        self.keys, self.documents, self.pending = [keys[distinct]], [documents[distinct]], 0
