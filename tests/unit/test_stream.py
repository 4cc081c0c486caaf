"""The stream is a function of position: elastic over ranks and micro-batches, resumable at every step, complete."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from pretrain.data.loader import BatchShape, Loader, Prefetcher
from pretrain.data.stream import Position, RowStream
from pretrain.masking.reference import TokenMasking
from pretrain.masking.vocabulary import Vocabulary
from tests.support.memory_blocks import MemoryBlocks

SEQ_LEN, ROWS, STEPS = 16, 12, 14
VOCABULARY = Vocabulary(size=101, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
BLOCKS = MemoryBlocks([[20, 3, 9], [1, 1, 40, 2], [14], [30, 30], [7, 6, 5]])


def loader(world_size: int, accumulation: int, rank: int, blocks: MemoryBlocks = BLOCKS) -> Loader:
    shape = BatchShape(world_size, accumulation, ROWS // world_size // accumulation)
    masking = TokenMasking(VOCABULARY, 0.3, 0.8, 0.1, seed=5, purpose="train")
    return Loader(RowStream(blocks, SEQ_LEN, 5, 2), SEQ_LEN, VOCABULARY, masking, shape, rank)


def global_batch(world_size: int, accumulation: int, position: Position) -> tuple[list[np.ndarray], Position]:
    """Tokens, positions, labels and masked positions of the whole global batch, rank after rank."""
    steps = [loader(world_size, accumulation, rank).step(position) for rank in range(world_size)]
    batches = [batch for step in steps for batch in step.batches]
    rows_before = np.arange(len(batches)) * (ROWS // world_size // accumulation) * SEQ_LEN
    masked = np.concatenate([b.masked_positions + offset for b, offset in zip(batches, rows_before, strict=True)])
    fields = [np.concatenate([getattr(b, name) for b in batches]) for name in ("tokens", "positions", "labels")]
    assert len({step.after for step in steps}) == 1
    return [*fields, masked], steps[0].after


@pytest.fixture(scope="module")
def reference() -> list[tuple[Position, list[np.ndarray]]]:
    """One rank without accumulation, from the start: (position, global batch) of every step, over three epochs."""
    found, position = [], Position()
    for _ in range(STEPS):
        arrays, after = global_batch(1, 1, position)
        found.append((position, arrays))
        position = after
    assert position.epoch >= 3
    return found


@settings(max_examples=60, deadline=None)
@given(
    world_size=st.sampled_from([1, 2, 3, 4, 6, 12]),
    accumulation=st.sampled_from([1, 2, 3, 4]),
    start=st.integers(0, STEPS - 1),
)
def test_any_world_size_resumed_anywhere_yields_the_same_batches(reference, world_size, accumulation, start):
    if ROWS % (world_size * accumulation):
        return
    position = reference[start][0]
    for step in range(start, min(start + 3, STEPS)):
        arrays, position = global_batch(world_size, accumulation, position)
        for found, wanted in zip(arrays, reference[step][1], strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_each_epoch_holds_every_document_once():
    stream = RowStream(BLOCKS, SEQ_LEN, 5, 2)
    wanted = Counter(np.concatenate([BLOCKS.tokens(b) for b in range(BLOCKS.n_blocks)]).tolist())
    orders = []
    for epoch in range(3):
        rows = list(stream.epoch_rows(epoch))
        tokens = np.concatenate([piece for row in rows for piece in row.pieces])
        assert Counter(tokens.tolist()) == wanted
        orders.append(tokens.tolist())
    assert orders[0] != orders[1] != orders[2]


def test_masks_of_a_row_differ_between_epochs():
    blocks = MemoryBlocks([[14] * 6])
    masks = []
    for epoch in range(2):
        batch = loader(1, 1, 0, blocks).step(Position(epoch, 0, 0)).batches[0]
        masks.append(tuple(batch.masked_positions))
    assert masks[0] != masks[1]


def test_layout_of_a_batch():
    batch = loader(1, 1, 0).step(Position()).batches[0]
    tokens, ends = batch.tokens, batch.cu_seqlens[: batch.n_documents + 1]
    assert ends[0] == 0
    assert ends[-1] == ROWS * SEQ_LEN
    original = tokens.copy()
    used = batch.labels >= 0
    original[batch.masked_positions[used]] = batch.labels[used]
    documents = 0
    for start, end in pairwise(ends.tolist()):
        assert start // SEQ_LEN == (end - 1) // SEQ_LEN, "a document crosses a row"
        assert batch.positions[start:end].tolist() == list(range(end - start))
        if (original[start:end] == VOCABULARY.pad).all():
            continue
        documents += 1
        assert (original[start], original[end - 1]) == (VOCABULARY.cls, VOCABULARY.sep)
        assert (original[start + 1 : end - 1] >= 5).all()
    assert documents > 0
    assert batch.n_tokens == (original != VOCABULARY.pad).sum()
    assert batch.n_predictions == used.sum()
    assert (batch.cu_seqlens[batch.n_documents :] == ROWS * SEQ_LEN).all()


def test_held_out_rows_are_the_same_for_any_world_size():
    def labels(world_size: int) -> Counter[int]:
        found: Counter[int] = Counter()
        counts = set()
        for rank in range(world_size):
            batches = list(loader(world_size, 1, rank).held_out(max_rows=17))
            counts.add(len(batches))
            for batch in batches:
                found.update(batch.labels[batch.labels >= 0].tolist())
        assert len(counts) == 1, "ranks must run as many batches, or ZeRO-3 waits for ever"
        return found

    assert labels(1) == labels(2) == labels(4)


def test_prefetcher_yields_the_loader_s_steps_and_its_errors():
    class Broken(MemoryBlocks):
        def tokens(self, block: int) -> np.ndarray:
            raise UserError("block is damaged")

    prefetcher = Prefetcher(loader(1, 1, 0), Position())
    wanted = loader(1, 1, 0).step(Position())
    found = prefetcher.next()
    assert (found.before, found.after) == (wanted.before, wanted.after)
    np.testing.assert_array_equal(found.batches[0].tokens, wanted.batches[0].tokens)
    prefetcher.close()
    broken = Prefetcher(loader(1, 1, 0, Broken([[5, 5]])), Position())
    with pytest.raises(UserError, match="damaged"):
        broken.next()
    broken.close()


def test_an_empty_data_set_is_refused():
    with pytest.raises(UserError, match="no document"):
        RowStream(MemoryBlocks([]), SEQ_LEN, 0, 1)
