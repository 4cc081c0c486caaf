"""Packing loses nothing, overfills nothing, and packs as tightly as best-fit decreasing does item by item."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretrain.data.packing import SPECIALS_PER_PIECE, best_fit_decreasing, cut, pack
from pretrain.philox import draw

LENGTHS = st.lists(st.integers(0, 90), min_size=0, max_size=150)


def best_fit_decreasing_by_item(sizes: list[int], capacity: int) -> list[int]:
    """Free space of each row, the textbook way."""
    free: list[int] = []
    for size in sizes:
        fitting = [row for row, space in enumerate(free) if space >= size]
        if fitting:
            row = min(fitting, key=lambda r: free[r])
        else:
            row = len(free)
            free.append(capacity)
        free[row] -= size
    return free


@given(st.integers(3, 60).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c), max_size=200))))
def test_equals_the_textbook_algorithm(case):
    capacity, sizes = case
    sizes = sorted(sizes, reverse=True)
    row = best_fit_decreasing(np.array(sizes, dtype=np.int64), capacity)
    load = np.bincount(row, weights=sizes) if sizes else np.array([])
    assert sorted(capacity - load) == sorted(best_fit_decreasing_by_item(sizes, capacity))


@given(lengths=LENGTHS, seq_len=st.integers(3, 40), seed=st.integers(0, 100))
def test_every_token_occurs_once_and_rows_do_not_overflow(lengths, seq_len, seed):
    documents = np.array(lengths, dtype=np.int64)
    rows = pack(documents, seq_len, draw((seed, 1), 2 * int(documents.sum()) + 2, 0, 0, 0))
    tokens = [np.arange(s, s + n) for s, n in zip(rows.piece_start, rows.piece_length, strict=True)]
    assert sorted(np.concatenate([*tokens, []]).tolist()) == list(range(int(documents.sum())))
    for row in range(len(rows)):
        lengths_here = rows.piece_length[rows.row_starts[row] : rows.row_starts[row + 1]]
        assert 0 < (lengths_here + SPECIALS_PER_PIECE).sum() <= seq_len


def test_pieces_do_not_cross_documents():
    starts, lengths = cut(np.array([5, 0, 12, 1]), 5)
    assert list(zip(starts.tolist(), lengths.tolist(), strict=True)) == [(0, 5), (5, 5), (10, 5), (15, 2), (17, 1)]


def test_packs_tightly_and_shuffles():
    rng = np.random.default_rng(0)
    documents = rng.integers(5, 400, size=5000)
    order = draw((1, 2), 100_000, 0, 0, 0)
    rows = pack(documents, 512, order)
    filled = documents.sum() + SPECIALS_PER_PIECE * len(rows.piece_start)
    assert filled / (len(rows) * 512) > 0.995
    first_pieces = rows.piece_start[rows.row_starts[:-1]]
    assert abs(np.corrcoef(first_pieces, np.arange(len(rows)))[0, 1]) < 0.1
    other = pack(documents, 512, draw((1, 3), 100_000, 0, 0, 0))
    assert not np.array_equal(rows.piece_start, other.piece_start)
