"""Duplicate documents: against plain Python, over tasks and passes, with bounded memory."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

from data_prep.cleaning import KeyRange, find_repeats, join_drops, key_writer
from data_prep.cleaning.key_passes import _grouped, document_hashes
from data_prep.cleaning.section_files import section_writer
from data_prep.common.errors import DamagedData, UserError

KINDS = ("exact", "near")


def plain(kind: str, tasks: list[np.ndarray]) -> list[list[int]]:
    """The rule in plain Python: what occurred in an earlier row, of any task, makes a document a duplicate."""
    seen: set = set()
    answers: list[list[int]] = []
    for rows in tasks:
        answers.append([])
        for index, row in enumerate(rows.tolist()):
            keys = {tuple(row)} if kind == "exact" else set(row) - {0}
            if keys & seen:
                answers[-1].append(index)
            seen |= keys
    return answers


def key_files(kind: str, tasks: list[np.ndarray], folder: Path, ranges: int) -> KeyRange:
    """The first range of the key files of these tasks, by the writer that a scan uses."""
    for task, rows in enumerate(tasks):
        owners = np.arange(len(rows)) if kind == "exact" else np.nonzero(rows)[0]
        keys = rows if kind == "exact" else rows[rows != 0][:, None]
        with section_writer(folder / f"{task}.keys", ranges) as add:
            for half in (slice(0, len(keys) // 2), slice(len(keys) // 2, None)):
                add(_grouped(keys[half], owners[half], ranges))
    files = [folder / f"{task}.keys" for task in range(len(tasks))]
    return KeyRange(files, [len(rows) for rows in tasks], 2 if kind == "exact" else 1, 0, ranges)


def resolved(kind: str, tasks: list[np.ndarray], folder: Path, ranges: int, max_bytes: int) -> list[list[int]]:
    """The dropped documents of each task; the ranges in a random order."""
    keys = key_files(kind, tasks, folder, ranges)
    drops = [folder / f"{number}.drop" for number in range(ranges)]
    for number in np.random.default_rng(ranges).permutation(ranges).tolist():
        find_repeats(replace(keys, number=number), drops[number], max_bytes)
    assert {path.name for path in folder.iterdir() if path.is_file()} == {path.name for path in [*keys.files, *drops]}
    answers = [join_drops(drops, task, folder / "joined.npy") for task in range(len(tasks))]
    assert (np.load(folder / "joined.npy") == answers[-1]).all()
    (folder / "joined.npy").unlink()
    assert all(array.dtype == np.uint32 for array in answers)
    return [array.tolist() for array in answers]


def random_tasks(seed: int, kind: str, spread: int = 60) -> list[np.ndarray]:
    """Tasks with few distinct values, all over the range of uint64, so that rows repeat in part and in full."""
    rng = np.random.default_rng(seed)
    values = np.append(rng.integers(0, 2**64, spread, dtype=np.uint64), np.array([0, 1, 2**64 - 1], dtype=np.uint64))
    columns = 2 if kind == "exact" else 3
    return [rng.choice(values, (int(size), columns)) for size in rng.integers(0, 40, 7)]


def test_document_hashes():
    texts = ["", "a", "été \U0001f600", "x" * 100_000]
    hashes = document_hashes(texts)
    assert hashes.dtype == np.uint64
    assert hashes.shape == (4, 2)
    for text, (high, low) in zip(texts, hashes.tolist(), strict=True):
        assert high << 64 | low == xxhash.xxh3_128_intdigest(text.encode())
    assert document_hashes([]).shape == (0, 2)
    assert len(np.unique(document_hashes(["\ud800", "\ud801", "?"]), axis=0)) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_bytes", [600, 20_000, 1 << 20])
@pytest.mark.parametrize("ranges", [1, 3, 64])
def test_against_plain_python(kind, ranges, max_bytes, tmp_path):
    """The same documents for any number and order of ranges, and any memory."""
    dropped = kept = 0
    for seed in range(2):  # by passes of a few rows each
        tasks = random_tasks(seed, kind, 4 if kind == "exact" else 300)
        expected = plain(kind, tasks)
        assert resolved(kind, tasks, tmp_path, ranges, max_bytes) == expected
        dropped += sum(map(len, expected))
        kept += sum(map(len, tasks)) - sum(map(len, expected))
    assert dropped > 20
    assert kept > 20


@pytest.mark.parametrize("kind,columns", [("exact", 2), ("near", 4)])
@pytest.mark.parametrize("copies", [False, True])
def test_memory_is_bounded(kind, columns, copies, tmp_path):
    rng = np.random.default_rng(0)
    size = 100_000
    tasks = [rng.integers(1, 2**64, (size, columns), dtype=np.uint64) for _ in range(4)]
    if copies:
        for rows in tasks:
            rows[rng.random(size) < 0.9] = 12345  # nine of ten documents are the same
    keys, drop = key_files(kind, tasks, tmp_path, 1), tmp_path / "drop"
    seen = np.unique(np.concatenate(tasks), axis=0)
    expected = 4 * size - len(seen)
    del tasks, seen
    peaks = []
    for max_bytes in (8 << 20, 64 << 20):
        tracemalloc.start()
        find_repeats(keys, drop, max_bytes)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(len(join_drops([drop], task, tmp_path / "joined.npy")) for task in range(4)) == expected
        assert peaks[-1] < max_bytes + (24 << 20)  # plus the part of a file that is read in one step
    if not copies:
        assert peaks[1] > 2 * peaks[0], "the bound has no effect"


def test_damaged_files_are_refused(tmp_path):
    tasks = random_tasks(0, "exact")
    keys, drop = key_files("exact", tasks, tmp_path, 2), tmp_path / "drop"
    path, good = keys.files[1], keys.files[1].read_bytes()
    altered = bytearray(good)
    altered[5] ^= 1
    for bad in (good[:-3], good[:40], b"", bytes(altered), good[:-16] + b"\xff" * 16, None):
        path.write_bytes(bad) if bad is not None else path.unlink()
        with pytest.raises(DamagedData, match=r"1\.keys is missing or damaged"):
            find_repeats(keys, drop, 1 << 20)
    assert not drop.exists()
    path.write_bytes(good)
    with pytest.raises(DamagedData, match="keys of other documents"):
        find_repeats(replace(keys, documents=[1] * len(tasks)), drop, 1 << 20)
    find_repeats(keys, drop, 1 << 20)
    with pytest.raises(DamagedData, match="no section"):  # of a task that was planned later
        join_drops([drop], len(tasks), tmp_path / "joined.npy")
    for parts in ([], [b"abc"], [b"", b""]):
        with section_writer(drop, 1) as add:
            add(parts)
        with pytest.raises(DamagedData, match="no list of documents for task 0"):
            join_drops([drop], 0, tmp_path / "joined.npy")
    with pytest.raises(UserError, match=r"too little .* use --memory-gb"):
        find_repeats(replace(keys, documents=[1 << 30] * len(tasks)), drop, 1 << 20)


def test_texts_written_some_at_a_time_give_the_same_repeats(tmp_path, monkeypatch):
    texts = [f"of {number % 40} words and some {number % 40} more words" for number in range(60)]
    found = []
    for name, part_keys, step in (("a", 1 << 20, 60), ("b", 7, 7)):
        monkeypatch.setattr("data_prep.cleaning.key_passes._PART_KEYS", part_keys)
        for kind, threshold, columns in (("exact", None, 2), ("near", 0.7, 1)):
            with key_writer(tmp_path / name, 3, threshold) as write:
                for first in range(0, 60, step):
                    write(texts[first : first + step])
            drops = [tmp_path / f"drop{number}" for number in range(3)]
            for number, drop in enumerate(drops):
                find_repeats(KeyRange([tmp_path / name], [60], columns, number, 3), drop, 1 << 20)
            found.append((kind, join_drops(drops, 0, tmp_path / "joined.npy").tolist()))
    assert found[:2] == found[2:]
    assert found[0] == ("exact", list(range(40, 60)))
    assert set(found[1][1]) >= set(range(40, 60))
