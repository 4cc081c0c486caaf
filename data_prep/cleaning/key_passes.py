"""Find keys that occurred before: in memory with a hash table, in files with passes over ranges of the keys."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash

from data_prep.cleaning.arrays import load_integers, row_writer, save_array
from data_prep.cleaning.near_duplicates import NgramUnit, signatures
from data_prep.cleaning.word_hashes import mix
from data_prep.common.errors import DamagedData

_BYTES_A_KEY = 128  # measured working memory of a pass
_ROWS = 1 << 18  # rows of a file that are read in one step


@contextlib.contextmanager
def key_writer(
    path: Path, threshold: float | None, unit: NgramUnit = "words"
) -> Iterator[Callable[[Sequence[str]], None]]:
    """A function that writes the keys of texts to a key file for `resolve_repeats`, in several parts.

    A key is a hash of the whole text. With a `threshold`, the keys of a text are its MinHash bands for this similarity
    of n-grams of the unit.
    """

    def keys(texts: Sequence[str]) -> np.ndarray:
        return document_hashes(texts) if threshold is None else signatures(texts, threshold, unit)

    with row_writer(path, keys([]).shape[1]) as add:
        yield lambda texts: add(keys(texts))


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


def resolve_repeats(
    key_files: Sequence[Path], drop_files: Sequence[Path], any_column: bool, max_bytes: int = 512 << 20
) -> None:
    """Write for each task the documents that repeat an earlier one.

    `key_files` hold uint64 [n_documents, columns], one file for each task, in order. A document repeats an earlier one
    if its whole row occurred before or, with `any_column`, if any of its non-zero elements did. `drop_files` get the
    sorted indices of these documents, uint32 [n_dropped]. Later documents have no influence, so appended tasks change
    no earlier result. For the same reason, clusters of near duplicates are not merged: a document that resembles no
    earlier one stays, even if a later one links it to a cluster.

    Takes expected time O(keys), plus O(keys x passes) for reading, with 256 x keys / max_bytes passes over one range of
    keys each. Copies of a key need no memory. An unnamed temporary file in the folder of the drop files holds one byte
    for each document. Raises DamagedData for an invalid file, or one with another number of columns.
    """
    if len(drop_files) != len(key_files):
        raise ValueError(f"{len(key_files)} key files and {len(drop_files)} drop files")
    if not key_files:
        return
    shapes = [load_integers(path, 2, "<u8").shape for path in key_files]
    for path, (_, columns) in zip(key_files, shapes, strict=True):
        if columns != shapes[0][1]:
            raise DamagedData(f"{path} has {columns} columns, not {shapes[0][1]}; delete it and run the command again.")
    ends = np.cumsum([rows for rows, _ in shapes])
    with tempfile.TemporaryFile(dir=drop_files[0].parent) as scratch:
        dropped = np.memmap(scratch, dtype=bool, mode="w+", shape=(max(1, int(ends[-1])),))
        n_keys = sum(rows * (columns if any_column else 1) for rows, columns in shapes)
        capacity = max(2, max_bytes // _BYTES_A_KEY)
        passes = -(-2 * n_keys // capacity) or 1
        for number in range(passes):
            bounds = (number << 64) // passes, ((number + 1) << 64) // passes - 1
            current = _Pass(dropped, capacity)
            for task, path in enumerate(key_files):
                _add_file(current, path, int(ends[task]) - shapes[task][0], bounds, any_column)
            current.compact()
        for task, (rows, _) in enumerate(shapes):
            indices = np.flatnonzero(dropped[ends[task] - rows : ends[task]])
            save_array(drop_files[task], indices.astype(np.uint32))


def read_drops(path: Path) -> np.ndarray:
    """The indices in a drop file. Raises DamagedData if it is missing or damaged."""
    return load_integers(path, 1)


def _add_file(current: "_Pass", path: Path, first: int, bounds: tuple[int, int], any_column: bool) -> None:
    """Add the keys of a file within `bounds`. `first` is the index of its first document."""
    array = load_integers(path, 2, "<u8")
    rows = max(1, min(_ROWS, current.capacity // (4 * array.shape[1])))  # all of them can be in one pass
    for start in range(0, len(array), rows):
        keys, owners = _in_range(array[start : start + rows], bounds, any_column)
        current.add(keys, owners + (first + start))


def _in_range(rows: np.ndarray, bounds: tuple[int, int], any_column: bool) -> tuple[np.ndarray, np.ndarray]:
    """Keys [n, columns] whose first element is within `bounds`, and their rows [n]."""
    low, high = np.uint64(bounds[0]), np.uint64(bounds[1])
    if any_column:
        elements = rows.reshape(-1)
        places = np.flatnonzero((elements >= max(low, np.uint64(1))) & (elements <= high))
        return elements[places][:, None], places // rows.shape[1]
    owners = np.flatnonzero((rows[:, 0] >= low) & (rows[:, 0] <= high))
    return rows[owners], owners


class _Pass:
    """The distinct keys of one range so far, and pending keys that are compared with them in batches."""

    def __init__(self, dropped: np.ndarray, capacity: int) -> None:
        self.dropped, self.capacity = dropped, capacity
        self.keys: list[np.ndarray] = []  # the distinct keys, then the pending ones
        self.documents: list[np.ndarray] = []
        self.pending = 0

    def add(self, keys: np.ndarray, documents: np.ndarray) -> None:
        self.keys.append(keys)
        self.documents.append(documents)
        self.pending += len(keys)
        if self.pending >= self.capacity // 2:
            self.compact()

    def compact(self) -> None:
        if not self.pending:
            return
        keys, documents = np.concatenate(self.keys), np.concatenate(self.documents)
        first = first_index(keys)
        # A document can have a key twice. Its keys are added in one step, so the first one is here too.
        self.dropped[documents[documents[first] != documents]] = True
        distinct = keys[first == np.arange(len(keys))]
        self.keys, self.documents, self.pending = [distinct], [np.full(len(distinct), -1)], 0
