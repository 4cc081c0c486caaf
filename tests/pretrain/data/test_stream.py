"""The stream is a function of position: elastic over ranks and micro-batches, resumable at every step, complete."""

import contextlib
import functools
import gc
import json
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.common.errors import DamagedData, UserError
from data_prep.common.reading import typed
from pretrain.config import StageSettings
from pretrain.data import Batch, BatchStage, Loader, LoaderStep, MixturePosition, Prefetcher, feed
from pretrain.data.batch import lay_out
from pretrain.data.mixture import PERIOD
from pretrain.data.quotas import CYCLE, FEW, Quotas
from pretrain.data.source_order import SourceOrder
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader, ShuffleWindow, Space
from pretrain.masking import TokenFlag, Vocabulary
from tests.support.drawn_rows import STRATEGIES
from tests.support.masks import token_masking
from tests.support.memory_blocks import MemoryBlocks, memory_loader, numbered

VOCABULARY = Vocabulary(size=60_000, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
MASKING = token_masking(VOCABULARY, 0.3, seed=5, **STRATEGIES["mix"])
BLOCKS = np.random.default_rng(1).integers(1, 60, size=(11, 4)).tolist()
# (after_step, seq_len, rows of a global batch): rows get longer and shorter, in the middle of windows.
CURRICULUM = [(0, 16, 12), (2, 32, 12), (3, 8, 24), (4, 8, 36), (6, 64, 12)]
STEPS = 11
LAYOUTS = [
    (world_size, micro)
    for world_size in (1, 2, 3, 4, 6)
    for micro in (None, 1, 2, 3, 4, 6)
    if all(rows % (world_size * min(micro or rows, rows // world_size)) == 0 for _, _, rows in CURRICULUM)
]


SOURCES = [numbered(BLOCKS), numbered([[50, 4], [11, 12, 13], [1] * 9], first=10_000)]


def word_starts(tokens: np.ndarray, block: int) -> np.ndarray:
    """ReadFlags: two of three tokens begin a word."""
    return (tokens % 3 > 0) * np.uint8(TokenFlag.WORD_START)


def loader(world_size: int, micro: int | None = None, rank: int = 0, curriculum=CURRICULUM, **options) -> Loader:
    stages = [BatchStage.divided(world_size, StageSettings(a, s, rows, micro, "")) for a, s, rows in curriculum]
    options = {"sources": SOURCES, "weights": (3, 1), "rate": 0.3, "flags": word_starts} | options
    return memory_loader(vocabulary=VOCABULARY, masking=MASKING, stages=stages, rank=rank, **options)


def joined(steps: list[LoaderStep]) -> list[np.ndarray]:
    """The global batch of all ranks' steps: tokens, positions, labels and masked positions, rank after rank."""
    batches = [batch for step in steps for batch in step.batches]
    before = np.cumsum([0] + [len(batch.tokens) for batch in batches])
    masked = np.concatenate([b.masked_positions + offset for b, offset in zip(batches, before, strict=False)])
    fields = [np.concatenate([getattr(b, name) for b in batches]) for name in ("tokens", "positions", "labels")]
    return [*fields, masked]


def original(batch: Batch) -> np.ndarray:
    """Tokens before masking."""
    tokens, used = batch.tokens.copy(), batch.labels >= 0
    tokens[batch.masked_positions[used]] = batch.labels[used]
    return tokens


@functools.cache
def mixed(sources: int) -> dict[str, Any]:
    """Options of a loader over one data set of that many sources, from one block to seven, with a power law."""
    counts = np.arange(sources) % 7 + 1
    blocks = np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])
    lengths = np.random.default_rng(2).integers(1, 5, size=(counts.sum(), 2)).tolist()
    quotas = Quotas.of(power_law(sources, 0.5), 64, several=True)
    order = SourceOrder(tuple(map(str, range(sources))), tuple(blocks), np.ones(sources), (quotas,))
    return {"sources": [numbered(lengths)], "weights": (1,), "window_blocks": 64, "order": order}


@pytest.fixture(scope="module")
def reference() -> list[tuple[MixturePosition, list[np.ndarray]]]:
    """Two data sets, one source in each."""
    return read_through()


@functools.cache
def mixed_reference(sources: int) -> list[tuple[MixturePosition, list[np.ndarray]]]:
    """One data set of many sources."""
    return read_through(**mixed(sources))


def read_through(**options: Any) -> list[tuple[MixturePosition, list[np.ndarray]]]:
    """One rank without accumulation, from the start: (position, global batch) of every step, over several windows."""
    one = loader(1, **options)
    found, position = [], one.mixture.start()
    for steps_done in range(STEPS):
        step = one.step(steps_done, position)
        found.append((position, joined([step])))
        position = step.after
    assert all(source.epoch >= 1 or source.window >= 2 for source in position.sources)
    return found


@st.composite
def interrupted_runs(draw):
    """Parts of a run: steps, ranks, micro-batch, and number of steps that are built ahead."""
    parts = []
    while sum(steps for steps, *_ in parts) < STEPS:
        parts.append((draw(st.integers(1, STEPS)), *draw(st.sampled_from(LAYOUTS)), draw(st.integers(0, 3))))
    return parts


def check_equals_reference(reference, parts, **options: Any) -> None:
    """Each part starts from nothing but the JSON of the position that the one before it left."""
    steps_done, saved = 0, json.dumps(asdict(reference[0][0]))
    for steps, world_size, micro, ahead in parts:
        ranks = [loader(world_size, micro, rank, **options) for rank in range(world_size)]
        position = typed(MixturePosition, json.loads(saved))
        for _ in range(min(steps, STEPS - steps_done)):
            built = [rank.step(steps_done, position) for rank in ranks]
            for found, wanted in zip(joined(built), reference[steps_done][1], strict=True):
                np.testing.assert_array_equal(found, wanted)
            assert len({step.after for step in built}) == 1
            steps_done, position = steps_done + 1, built[0].after
        saved = json.dumps(asdict(position))
        for number in range(ahead):  # what was built and never consumed must not count
            position = ranks[0].step(steps_done + number, position).after


@settings(max_examples=15, deadline=None)
@given(parts=interrupted_runs())
def test_any_ranks_micro_batches_and_resumes_yield_the_reference(reference, parts):
    check_equals_reference(reference, parts)


@pytest.mark.parametrize("sources", [30, 2000])
@settings(max_examples=2, deadline=None)
@given(parts=interrupted_runs())
def test_mixed_sources_are_as_elastic(sources, parts):
    check_equals_reference(mixed_reference(sources), parts, **mixed(sources))


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
@pytest.mark.parametrize("window_blocks", [1, 2, 64])
def test_every_token_occurs_once_an_epoch_through_all_stages(packing, window_blocks):
    """Rows change length in the middle of windows; still nothing is lost, and nothing comes twice."""
    one = loader(1, packing=packing, window_blocks=window_blocks)
    counts, position, repacked = np.zeros(VOCABULARY.size, dtype=int), one.mixture.start(), False
    for steps_done in range(STEPS):
        step = one.step(steps_done, position)
        for batch in step.batches:
            tokens = original(batch)
            counts += np.bincount(tokens[tokens >= 5], minlength=VOCABULARY.size)
        position = step.after
        repacked = repacked or any(place.past for place in position.sources)
        for source, place in zip(SOURCES, position.sources, strict=True):
            ids = np.concatenate([source.tokens(block) for block in range(source.n_blocks)])
            complete = Position(place.epoch) == place
            assert counts[ids].min() == place.epoch
            assert counts[ids].max() == place.epoch + (0 if complete else 1)
    assert any(place.epoch >= 1 for place in position.sources)
    assert repacked or window_blocks < 64


def test_a_change_of_row_length_repacks_what_is_left_of_the_window():
    blocks = numbered([[40, 3], [25, 60]])
    stream = RowStream(BlockReader(blocks), seed=1, window_blocks=2, packing="best_fit")
    parts, position = stream.take(Position(), 3, 16)
    switched = position.after_seq_len(16)
    assert switched == Position(0, 0, 3, ((16, 3),))
    assert switched.after_seq_len(64) == switched, "no row of 64 was read yet"
    assert Position(1, 1, 0).after_seq_len(16) == Position(1, 1, 0)
    rest, position = stream.take(switched, stream.window(switched, 64).end_row - 3, 64)
    assert position == Position(1)
    pieces = [part.window.pieces(part.numbers) for part in (*parts, *rest)]
    longest = max(int(lengths.max()) for _, lengths, _ in pieces[1:])
    assert longest > 14, "pieces that touch are joined again"
    taken = [part.window.tokens(*found[:2])[0].tokens for part, found in zip((*parts, *rest), pieces, strict=True)]
    assert sorted(np.concatenate(taken).tolist()) == list(range(5, 5 + 128))


def test_epochs_and_sources_order_rows_differently():
    def order(source: int, epoch: int) -> list[int]:
        stream = RowStream(BlockReader(SOURCES[0]), 5, 2, "best_fit", source)
        parts, _ = stream.take(Position(epoch), 40, 16)
        return [int(n) for part in parts for n in part.window.tokens(*part.window.pieces(part.numbers)[:2])[0].tokens]

    assert len({tuple(order(source, epoch)) for source in (0, 1) for epoch in (0, 1, 2)}) == 6


def test_masks_of_a_row_differ_between_epochs_and_sources():
    """The same rows, standing elsewhere in the stream."""
    parts, _ = RowStream(BlockReader(SOURCES[0]), 5, 2, "best_fit").take(Position(), 4, 16)
    elsewhere = [{}, {"epoch": 1}, {"source": 1}, {"window_number": 1}, {"source": 1, "epoch": 1}]
    batches = [lay_out([replace(p, **at) for p in parts], 4, 16, VOCABULARY).masked(MASKING, 0.3) for at in elsewhere]
    assert len({tuple(batch.masked_positions) for batch in batches}) == len(elsewhere)
    assert len({tuple(original(batch)) for batch in batches}) == 1


def test_each_period_deals_the_quotas():
    mixture = loader(1, sources=SOURCES * 2, weights=(5, 1, 2, 0.0001)).mixture
    wanted = Quotas.of((5, 1, 2, 0.0001), PERIOD).rows
    assert wanted.tolist() == [2559, 512, 1024, 1]
    parts = [mixture.count_rows(first, 1024) for first in range(0, 2 * PERIOD, 1024)]
    assert (sum(parts[:4]) == wanted).all()
    assert (sum(parts[4:]) == wanted).all()
    assert (mixture.count_rows(0, 2 * PERIOD) == 2 * wanted).all()
    assert (sum(mixture.count_rows(n, 1) for n in range(100, 130)) == mixture.count_rows(100, 30)).all()
    assert len({tuple(part) for part in parts}) > 4, "shuffled, and differently in each period"
    assert np.abs(parts[0] - wanted / 4).max() < 60


def power_law(sources: int, exponent: float) -> np.ndarray:
    """Shares of languages whose sizes follow a power law over six orders of magnitude, as web text does."""
    sizes = np.arange(1, sources + 1) ** (-6 / np.log10(sources))
    return sizes**exponent / (sizes**exponent).sum()


@pytest.mark.parametrize(("sources", "exponent"), [(FEW + 1, 1), (1834, 0.3), (1834, 0.7), (1834, 1), (5000, 0.5)])
def test_quotas_of_many_sources_are_exact_in_a_cycle_and_even_in_it(sources, exponent):
    """Within 1% for every source with 50 rows in a cycle, and those with less get no more than a row too many."""
    shares = power_law(sources, exponent)
    quotas = Quotas.of(shares, PERIOD)
    assert quotas.rows.sum() == PERIOD * CYCLE
    assert quotas.rows.min() >= 1
    error = np.abs(quotas.rows - shares * PERIOD * CYCLE)
    assert (error <= np.maximum(1, 0.01 * shares * PERIOD * CYCLE)).all()
    read = np.zeros(sources, dtype=int)
    for period in range(CYCLE):
        before, read = read, quotas.before(period + 1)
        assert (read - before).sum() == PERIOD
        assert np.abs(read - before - shares * PERIOD).max() < 1.1
        if period == CYCLE // 3:
            assert np.abs(read - shares * PERIOD * (period + 1)).max() < 4, "even within a cycle"
    assert (read == quotas.rows).all()
    with pytest.raises(UserError, match="cannot share"):
        Quotas.of(np.ones(PERIOD * CYCLE + 1), PERIOD)


def test_few_sources_keep_the_period_of_earlier_versions():
    """Their runs resume to the same order: quotas of every period are those that the checkpoint names."""
    shares = power_law(FEW, 1)
    quotas = Quotas.of(shares, PERIOD)
    assert quotas.rows.sum() == PERIOD
    assert (quotas.before(8) - quotas.before(7) == quotas.rows).all()


def test_held_out_rows_are_the_same_for_any_world_size():
    def labels(world_size: int) -> Counter[int]:
        found: Counter[int] = Counter()
        counts = set()
        for rank in range(world_size):
            one = loader(world_size, 3, rank, [(0, 16, 12)], sources=SOURCES[:1], weights=(1,))
            batches = list(one.held_out(steps_done=1, max_rows=17))
            counts.add(len(batches))
            for batch in batches:
                found.update(batch.labels[batch.labels >= 0].tolist())
        assert len(counts) == 1, "ranks must run as many batches, or ZeRO-3 waits for ever"
        return found

    assert labels(1) == labels(2) == labels(4)


def test_held_out_rows_are_as_long_as_those_of_the_last_step():
    one = loader(1)
    lengths = {steps_done: next(one.held_out(steps_done, 5)).seq_len for steps_done in (0, 1, 2, 3, 4, 7)}
    assert lengths == {0: 16, 1: 16, 2: 16, 3: 32, 4: 8, 7: 64}


def test_held_out_rows_end_with_the_first_epoch():
    one = loader(1, curriculum=[(0, 16, 12)], sources=SOURCES[:1], weights=(1,))
    tokens = np.concatenate([original(batch) for batch in one.held_out(1, max_rows=10**6)])
    assert sorted(tokens[tokens >= 5].tolist()) == list(range(5, 5 + np.sum(BLOCKS)))


def test_what_the_loader_raises_comes_out_of_the_prefetcher():
    broken = loader(1, sources=[MemoryBlocks(BLOCKS, damaged=range(11))], weights=(1,))
    prefetcher = Prefetcher(broken, 0, broken.mixture.start(), lambda step: step)
    with pytest.raises(DamagedData, match="is damaged"):
        prefetcher.next()
    prefetcher.close()


def test_a_rank_reads_the_blocks_that_it_needs():
    """Documents are longer than rows, so each of four ranks needs about a quarter of a window's blocks."""
    lengths = [[400]] * 16
    for rank in range(4):
        blocks, read = numbered(lengths), []
        one = loader(4, rank=rank, curriculum=[(0, 16, 200)], sources=[blocks], weights=(1,), window_blocks=16)
        monitored = blocks.read_tokens
        blocks.read_tokens = lambda block, out, read=read, old=monitored: (read.append(block), old(block, out))
        one.step(0, one.mixture.start())
        assert 4 <= len(read) == len(set(read)) <= 6


def test_the_next_window_is_read_ahead_where_this_rank_will_need_it():
    one = loader(2, rank=1, curriculum=[(0, 16, 60)], sources=[numbered([[392]] * 24)], weights=(1,), window_blocks=8)
    stream, position, steps_done = one.mixture.streams[0], one.mixture.start(), 0
    while stream.ahead is None:
        position = one.step(steps_done, position).after
        steps_done += 1
    present, ahead = stream.latest[1], stream.ahead[1].result(timeout=60)
    assert position.sources[0].window == 0
    assert 3 <= present.loaded.sum() <= 5, "about half of the eight"
    assert ahead.loaded.sum() >= 2
    assert not (ahead.loaded & ~present.loaded).any(), "the same places"
    while position.sources[0].window == 0:
        position = one.step(steps_done, position).after
        steps_done += 1
    one.step(steps_done, position)
    assert stream.latest[1] is ahead, "and it is the one that is trained on"


def test_damage_in_what_was_read_ahead_shows_when_it_is_needed():
    def steps(damaged: list[int]) -> int:
        one = loader(1, curriculum=[(0, 16, 10)], sources=[MemoryBlocks([[400]] * 8, damaged=damaged)], weights=(1,))
        position, done = one.mixture.start(), 0
        with contextlib.suppress(DamagedData):
            while position.sources[0].epoch == 0:
                position, done = one.step(done, position).after, done + 1
        return done

    order = RowStream(BlockReader(MemoryBlocks([[400]] * 8)), 5, 2, "best_fit")
    second = order.window(Position(0, 1), 16).ids
    whole = steps([])
    assert whole > 15
    assert 4 <= steps(second) < 8 < whole, "the first window, of some six steps, is trained on"


def test_two_windows_a_source_stay_in_memory_at_most():
    one = loader(1)
    position = one.mixture.start()
    for steps_done in range(STEPS):
        position = one.step(steps_done, position).after
    list(one.held_out(STEPS, 20))
    gc.collect()
    held = [(stream.latest, stream.ahead) for stream in one.mixture.streams]
    assert held == [(None, None)] * 2, "given up after an evaluation"
    one.step(STEPS, position)
    gc.collect()
    streams = {id(stream.reader) for stream in one.mixture.streams}
    alive = [found for found in gc.get_objects() if isinstance(found, ShuffleWindow) and id(found.reader) in streams]
    assert len(alive) <= 4, "of each source the latest, and the one after it"


def test_the_prefetcher_yields_the_loader_s_steps_a_few_ahead_and_closes_it():
    one, ahead, before = loader(1), loader(1), set(threading.enumerate())
    position, built = one.mixture.start(), []

    def use(step: LoaderStep) -> LoaderStep:
        built.append(step)
        return step

    prefetcher = Prefetcher(ahead, 0, position, use)
    for steps_done in range(5):
        wanted, found = one.step(steps_done, position), prefetcher.next()
        assert (found.before, found.after) == (wanted.before, wanted.after)
        np.testing.assert_array_equal(found.batches[0].tokens, wanted.batches[0].tokens)
        position = found.after
    time.sleep(0.3)
    assert 5 <= len(built) <= 5 + 2 + 1
    prefetcher.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("prefetch")]
    with pytest.raises(RuntimeError, match="shutdown"):
        ahead.mixture.streams[0].reader.read([0, 1], [Space(np.empty(0), None), Space(np.empty(0), None)])


def test_a_loader_that_hangs_does_not_keep_the_prefetcher_from_closing(monkeypatch):
    monkeypatch.setattr(feed, "_CLOSE_SECONDS", 0.2)
    hanging = threading.Event()

    class Hanging(MemoryBlocks):
        def read_tokens(self, block: int, out: np.ndarray) -> None:
            hanging.wait()

    one = loader(1, sources=[Hanging(BLOCKS)], weights=(1,))
    prefetcher = Prefetcher(one, 0, one.mixture.start(), lambda step: step)
    start = time.monotonic()
    prefetcher.close()
    assert time.monotonic() - start < 5
    hanging.set()


def test_a_damaged_block_is_replaced_alike_on_every_rank():
    def steps(world_size: int, damaged: list[int], substitute=(1, 2)) -> list[LoaderStep]:
        found = []
        for rank in range(world_size):
            one = loader(world_size, None, rank, [(0, 16, 120)], sources=SOURCES[:1], weights=(1,))
            blocks = numbered(BLOCKS)
            blocks.damaged = damaged
            one.mixture.streams = [RowStream(BlockReader(blocks, substitute), 5, 2, "best_fit")]
            found.append(one.step(0, one.mixture.start()))
        return found

    sound, damaged = steps(1, []), steps(1, [3])
    assert sound[0].after == damaged[0].after
    replaced = sum(b.n_replaced for b in damaged[0].batches)
    assert replaced == sum(BLOCKS[3])
    assert sum(b.n_replaced for b in sound[0].batches) == 0
    shared = steps(4, [3])
    for found, wanted in zip(joined(shared), joined(damaged), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert sum(b.n_replaced for step in shared for b in step.batches) == replaced
    assert not np.array_equal(joined(steps(1, [3], (5, 9)))[0], joined(damaged)[0]), "another key, another stand-in"
    lost = set(numbered(BLOCKS).tokens(3).tolist())
    assert not lost & set(original(damaged[0].batches[0]).tolist())
    one_left = steps(1, [block for block in range(11) if block != 6])
    assert set(original(one_left[0].batches[0]).tolist()) <= {0, 2, 3, *numbered(BLOCKS).tokens(6).tolist()}
    with pytest.raises(DamagedData):
        steps(1, list(range(11)))
    with pytest.raises(DamagedData):
        steps(1, [3], substitute=None)


def test_a_block_of_the_same_source_replaces_a_block():
    blocks = numbered([[4], [4], [4], [4]])
    blocks.damaged = (1, 2)
    reader = BlockReader(blocks, (1, 2), groups=(np.array([0, 1]), np.array([2]), np.array([3])))
    out = reader.space(4)
    assert reader.read([1], [out]) == [False]
    assert out.tokens.tolist() == blocks.tokens(0).tolist()
    with pytest.raises(DamagedData):  # nothing of its source is left
        reader.read([2], [out])


def test_a_stand_in_has_its_own_marks_and_must_be_readable():
    """The marks of a block can be damaged too; then another block replaces it."""

    def marks(tokens: np.ndarray, block: int) -> np.ndarray:
        if block == 0:
            raise DamagedData("the words of block 0 are damaged.")
        return (tokens + block).astype(np.uint8)

    blocks = numbered([[4], [4], [4]])
    blocks.damaged = (1,)
    reader = BlockReader(blocks, (1, 2), marks)
    for block in (0, 1):
        out = reader.space(4)
        assert reader.read([block], [out]) == [False]
        assert out.tokens.tolist() == blocks.tokens(2).tolist()
        assert out.flags.tolist() == (out.tokens + 2).tolist()
