"""Duplicate documents: against plain Python, over tasks and passes, with bounded memory."""

import functools
import tracemalloc

import numpy as np
import pytest
import xxhash

from data_prep.cleaning.arrays import row_writer, save_array
from data_prep.cleaning.key_passes import document_hashes, resolve_repeats
from data_prep.common.errors import DamagedData

RESOLVE = {kind: functools.partial(resolve_repeats, any_column=kind == "near") for kind in ("exact", "near")}


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


def resolved(kind: str, tasks: list[np.ndarray], folder, **settings) -> list[list[int]]:
    keys = [folder / f"{task}.keys.npy" for task in range(len(tasks))]
    drops = [folder / f"{task}.drop.npy" for task in range(len(tasks))]
    for path, rows in zip(keys, tasks, strict=True):
        save_array(path, rows)
    RESOLVE[kind](keys, drops, **settings)
    arrays = [np.load(path, allow_pickle=False) for path in drops]
    assert all(array.dtype == np.uint32 for array in arrays)
    assert {path.name for path in folder.iterdir()} == {path.name for path in keys + drops}
    return [array.tolist() for array in arrays]


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


@pytest.mark.parametrize("kind", RESOLVE)
@pytest.mark.parametrize("max_bytes", [600, 2_000, 20_000, 1 << 20])
def test_against_plain_python(kind, max_bytes, tmp_path):
    dropped = kept = 0
    for seed in range(2 if max_bytes < 20_000 else 5):  # by passes of a few rows each
        tasks = random_tasks(seed, kind, 4 if kind == "exact" else 300)
        expected = plain(kind, tasks)
        assert resolved(kind, tasks, tmp_path, max_bytes=max_bytes) == expected
        dropped += sum(map(len, expected))
        kept += sum(map(len, tasks)) - sum(map(len, expected))
    assert dropped > 50
    assert kept > 50


@pytest.mark.parametrize("kind", RESOLVE)
def test_appended_tasks_change_no_earlier_answer(kind, tmp_path):
    tasks = random_tasks(1, kind, 10 if kind == "exact" else 60)
    whole = resolved(kind, tasks, tmp_path)
    assert sum(map(len, whole))
    for count in range(len(tasks)):
        part = tmp_path / str(count)
        part.mkdir()
        assert resolved(kind, tasks[:count], part, max_bytes=3_000) == whole[:count]


def test_a_later_document_that_links_two_does_not_drop_the_second(tmp_path):
    first, second, bridge = [1, 2], [3, 4], [1, 3]
    tasks = [np.array(rows, dtype=np.uint64) for rows in ([first, second], [bridge], [[9, 3]], [[9, 8]])]
    assert resolved("near", tasks, tmp_path) == [[], [0], [0], [0]]  # the last resembles a dropped one alone


@pytest.mark.parametrize("kind,columns", [("exact", 2), ("near", 4)])
@pytest.mark.parametrize("copies", [False, True])
def test_memory_is_bounded(kind, columns, copies, tmp_path):
    rng = np.random.default_rng(0)
    size = 100_000
    tasks = [rng.integers(1, 2**64, (size, columns), dtype=np.uint64) for _ in range(4)]
    if copies:
        for rows in tasks:
            rows[rng.random(size) < 0.9] = 12345  # nine of ten documents are the same
    keys, drops = ([tmp_path / f"{task}.{part}.npy" for task in range(4)] for part in ("keys", "drop"))
    for path, rows in zip(keys, tasks, strict=True):
        save_array(path, rows)
    seen = np.unique(np.concatenate(tasks), axis=0)
    expected = 4 * size - len(seen)
    del tasks, rows, seen
    peaks = []
    for max_bytes in (8 << 20, 64 << 20):
        tracemalloc.start()
        RESOLVE[kind](keys, drops, max_bytes=max_bytes)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(len(np.load(path)) for path in drops) == expected
        assert peaks[-1] < max_bytes + (12 << 20)  # plus the part of a file that is read in one step
    if not copies:
        assert peaks[1] > 2 * peaks[0], "the bound has no effect"


def test_damaged_key_files(tmp_path):
    key, drop, other = (tmp_path / name for name in ("key.npy", "drop.npy", "other.npy"))
    save_array(key, np.ones((5, 2), np.uint64))
    good = key.read_bytes()
    for bad in (good[:-3], good[:40], b""):
        key.write_bytes(bad)
        with pytest.raises(DamagedData, match=r"key\.npy"):
            RESOLVE["exact"]([key], [drop])
    key.unlink()
    with pytest.raises(DamagedData, match=r"key\.npy"):
        RESOLVE["exact"]([key], [drop])
    for array in (np.ones((5, 2)), np.ones(5, np.uint64), np.ones((5, 3), np.uint64)):
        save_array(other, np.ones((5, 2), np.uint64))
        save_array(key, array)
        with pytest.raises(DamagedData, match=r"key\.npy"):
            RESOLVE["exact"]([other, key], [drop, drop])
    assert not drop.exists()


def test_rows_written_some_at_a_time_give_the_same_file(tmp_path):
    rows = np.random.default_rng(0).integers(0, 2**63, (1000, 3)).astype(np.uint64)
    for many in (0, 1, 1000):
        save_array(tmp_path / "one.npy", rows[:many])
        with row_writer(tmp_path / "parts.npy", 3) as add:
            for first in range(0, many, 300):
                add(rows[first : min(many, first + 300)])
        assert (tmp_path / "parts.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
