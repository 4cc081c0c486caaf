"""Quality of the shuffle: Maskwright's windows against webdataset's buffer and a full permutation.

    python -m benchmarks.shuffle --blocks 2000 --out shuffle.md

This uses the bundled text. A batch size is left out if the text fills fewer than three batches. For all figures,
prepare more text, with ids that name books:

    maskwright prep run --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert --id-field id --out data/books
    python -m benchmarks.shuffle --data data/books --short data/sentences

Simulated on document lengths, with the code that orders and packs in training and the code that shuffles in webdataset.
The source of a document is the book: its id up to the last "-". A larger corpus of --blocks blocks is made of books
drawn from the real ones; its sources are consecutive blocks, as in web crawls.
"""

import itertools
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
from webdataset.filters import _shuffle

from benchmarks.harness import BOOKS, options, prepare_text, run, table, write_page
from data_prep.common.errors import UserError
from data_prep.format import Dataset, ShardWriter
from pretrain.data.packing import PackedLayout, pack, randoms_needed
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader

SEED = 7
BLOCK_TOKENS = ShardWriter.BLOCK_TOKENS
WINDOWS = (16, 64, 256, 1024)  # blocks
BUFFERS = (1_000, 10_000)  # samples of webdataset's buffer; the first is what its documentation has
STREAMS = (1, 32)  # ranks times workers, each with its own shards
SHARDS_AHEAD = 100  # webdataset's buffer of shards
BATCHES = (16, 256, 4_096)  # rows
BLOCKS_A_SOURCE = 100  # of the made corpus, on average
DOCUMENTS_A_SHARD = 100_000  # webdataset's own default, of the made corpus
REAL_SHARDS = 8


class Corpus:
    """Documents in the order of their blocks; has the interface of a data set.

    lengths int64 [documents]: tokens. source int64 [documents], from 0. first_document int64 [blocks + 1].
    asked: the blocks whose lengths the stream has read.
    """

    dtype = np.dtype("<u2")

    def __init__(self, lengths: np.ndarray, source: np.ndarray, first_document: np.ndarray):
        self.lengths, self.source, self.first_document = lengths, source, first_document
        self.start = np.cumsum(lengths) - lengths
        self.n_blocks = len(first_document) - 1
        self.asked: list[int] = []

    def document_lengths(self, block: int) -> np.ndarray:
        self.asked.append(block)
        return self.lengths[self.first_document[block] : self.first_document[block + 1]].astype(np.uint32)

    def read_tokens(self, block: int, out: np.ndarray) -> None:
        raise NotImplementedError("plans are made of lengths alone")


@dataclass(frozen=True)
class Order:
    """Every piece of an epoch: its row in the stream, document, tokens, and the first token's place in the corpus."""

    row: np.ndarray
    document: np.ndarray
    length: np.ndarray
    place: np.ndarray

    def moved(self, row: np.ndarray) -> "Order":
        """The same pieces in other rows."""
        return replace(self, row=row)


# Orders


def windows(corpus: Corpus, window_blocks: int, seq_len: int) -> Iterator[tuple[np.ndarray, PackedLayout]]:
    """The documents and the rows of each window of an epoch."""
    stream = stream_of(corpus, window_blocks)
    for number in range(stream.n_windows):
        corpus.asked.clear()
        rows = stream.window(Position(0, number), seq_len).rows
        yield np.concatenate([np.arange(*corpus.first_document[block : block + 2]) for block in corpus.asked]), rows
    stream.close()


def stream_of(corpus: Corpus, window_blocks: int) -> RowStream:
    return RowStream(BlockReader(corpus), SEED, window_blocks, "best_fit")


def buffered(corpus: Corpus, buffer: int, streams: int, shard: int, seq_len: int) -> list[list[tuple]]:
    """For each stream: documents and rows of each packing buffer, after webdataset's two shuffles."""
    rng = random.Random(SEED)
    shards = list(range(0, len(corpus.lengths), shard))
    result = []
    for mine in (shards[number::streams] for number in range(streams)):
        ordered = _shuffle(iter(mine), SHARDS_AHEAD, rng=rng)
        samples = (number for first in ordered for number in range(first, min(first + shard, len(corpus.lengths))))
        shuffled = _shuffle(samples, buffer, rng=rng)
        parts = []
        while batch := list(itertools.islice(shuffled, max(BUFFERS))):
            documents = np.array(batch)
            parts.append((documents, packed(corpus.lengths[documents], seq_len, rng)))
        result.append(parts)
    return result


def packed(lengths: np.ndarray, seq_len: int, rng: random.Random) -> PackedLayout:
    numbers = np.random.default_rng(rng.getrandbits(64)).integers(
        0, 2**64, randoms_needed(lengths, seq_len), dtype=np.uint64
    )
    return pack(np.cumsum(lengths) - lengths, lengths, seq_len, numbers, "best_fit")


def pieces_of(corpus: Corpus, documents: np.ndarray, rows: PackedLayout) -> Order:
    """The pieces of packed documents, rows counted from 0."""
    lengths = corpus.lengths[documents]
    start = np.cumsum(lengths) - lengths
    which = np.searchsorted(start, rows.piece_start, side="right") - 1
    document = documents[which]
    place = corpus.start[document] + rows.piece_start - start[which]
    return Order(np.repeat(np.arange(len(rows)), np.diff(rows.row_starts)), document, rows.piece_length, place)


def one_after_the_other(corpus: Corpus, parts: Iterator[tuple[np.ndarray, PackedLayout]]) -> Order:
    orders, rows_before = [], 0
    for documents, rows in parts:
        order = pieces_of(corpus, documents, rows)
        orders.append(order.moved(order.row + rows_before))
        rows_before += len(rows)
    return joined(orders)


def in_turns(corpus: Corpus, streams: list[list[tuple]]) -> Order:
    """Interleave streams, a row of each in turn; the last rows of longer ones follow."""
    orders = [one_after_the_other(corpus, iter(parts)) for parts in streams]
    order = joined([one.moved(one.row * len(orders) + number) for number, one in enumerate(orders)])
    return order.moved(np.unique(order.row, return_inverse=True)[1])


def joined(orders: list[Order]) -> Order:
    return Order(*(np.concatenate([getattr(one, field.name) for one in orders]) for field in fields(Order)))


# Measures


@dataclass(frozen=True)
class Quality:
    """distance: mean rows between neighbours of the corpus. variance, together: by rows of a batch."""

    distance: float
    variance: dict[int, float]
    together: dict[int, float]


def quality(corpus: Corpus, order: Order, batches: list[int]) -> Quality:
    along = order.row[np.argsort(order.place, kind="stable")]
    source = corpus.source[order.document]
    return Quality(
        distance=float(np.abs(np.diff(along)).mean()),
        variance={rows: source_variance(order.row // rows, source, order.length) for rows in batches},
        together={rows: share_together(order.row, rows, order.document) for rows in batches},
    )


def source_variance(batch: np.ndarray, source: np.ndarray, length: np.ndarray) -> float:
    """Variance over batches of a source's share of the tokens, summed over sources; the last batch is left out."""
    whole = batch < batch.max()
    batch, source, length = batch[whole], source[whole], length[whole]
    n_batches, n_sources = int(batch.max()) + 1, int(source.max()) + 1
    cells, cell = np.unique(batch * n_sources + source, return_inverse=True)
    share = np.bincount(cell, length) / np.bincount(batch, length)[cells // n_sources]
    mean = np.bincount(cells % n_sources, share, n_sources) / n_batches
    return float((share**2).sum() / n_batches - (mean**2).sum())


def share_together(row: np.ndarray, rows: int, document: np.ndarray) -> float:
    """Share of the rows that share a document with another row of the same batch."""
    n_documents = int(document.max()) + 1
    held = np.unique(row * n_documents + document)  # pieces of one document that share a row count once
    row_of, document_of = np.divmod(held, n_documents)
    cell = row_of // rows * n_documents + document_of
    order = np.argsort(cell, kind="stable")
    same = np.diff(cell[order]) == 0
    crowded = np.concatenate([same, [False]]) | np.concatenate([[False], same])
    return len(np.unique(row_of[order[crowded]])) / (int(row.max()) + 1)


# Corpora


def corpus_of(path: Path) -> Corpus:
    """A data set whose sources are the books that its ids name."""
    data = Dataset(path)
    lengths = [data.document_lengths(block).astype(np.int64) for block in range(data.n_blocks)]
    names = [names_of(data, block) for block in range(data.n_blocks)]
    source = np.unique(np.concatenate(names), return_inverse=True)[1]
    return Corpus(np.concatenate(lengths), source, np.cumsum([0, *map(len, lengths)]))


def names_of(data: Dataset, block: int) -> list[str]:
    ids = data.ids(block)
    if ids is None:
        raise UserError(f"{data.path} keeps no ids; prepare it with --id-field, so that sources are known.")
    return [str(id).rpartition("-")[0] for id in ids]


def made_corpus(real: Corpus, n_blocks: int) -> Corpus:
    """`n_blocks` blocks of books drawn with replacement; sources are consecutive blocks."""
    rng = np.random.default_rng(SEED)
    starts = np.flatnonzero(np.diff(real.source, prepend=-1))
    sizes = np.diff(starts, append=len(real.source))
    per_book = real.lengths.sum() / len(starts)
    books = rng.integers(0, len(starts), int(1.2 * n_blocks * BLOCK_TOKENS / per_book) + 100)
    book = np.repeat(np.arange(len(books)), sizes[books])
    within = np.arange(len(book)) - np.repeat(np.cumsum(sizes[books]) - sizes[books], sizes[books])
    lengths = real.lengths[starts[books][book] + within]
    first_document = blocks_of(lengths, n_blocks)
    ends = np.cumsum(rng.geometric(1 / BLOCKS_A_SOURCE, 2 * n_blocks // BLOCKS_A_SOURCE + 100))
    block = np.repeat(np.arange(n_blocks), np.diff(first_document))
    return Corpus(lengths[: first_document[-1]], np.searchsorted(ends, block, side="right"), first_document)


def blocks_of(lengths: np.ndarray, n_blocks: int) -> np.ndarray:
    """First documents of blocks: a block closes with the document that reaches BLOCK_TOKENS."""
    ends, starts, tokens = np.cumsum(lengths), [0], 0
    for _ in range(n_blocks):
        last = int(np.searchsorted(ends, tokens + BLOCK_TOKENS))
        tokens = int(ends[last])
        starts.append(last + 1)
    return np.array(starts)


def repeated(data: Dataset, n_blocks: int) -> Corpus:
    """The blocks of a data set, repeated."""
    blocks = [data.document_lengths(block % data.n_blocks).astype(np.int64) for block in range(n_blocks)]
    lengths = np.concatenate(blocks)
    return Corpus(lengths, np.zeros(len(lengths), dtype=np.int64), np.cumsum([0, *map(len, blocks)]))


# Costs


def planning(corpus: Corpus, window_blocks: int, seq_len: int) -> tuple[float, float]:
    """Seconds to plan a window (best of three), and the peak MiB allocated, tokens included."""
    seconds = []
    for _ in range(3):
        stream, begin = stream_of(corpus, window_blocks), time.perf_counter()
        stream.window(Position(), seq_len)
        seconds.append(time.perf_counter() - begin)
        stream.close()
    tracemalloc.start()
    stream = stream_of(corpus, window_blocks)
    stream.window(Position(), seq_len)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    stream.close()
    return min(seconds), peak / 2**20


# Report


def main() -> None:
    parser = options(__doc__, "shuffle")
    parser.add_argument("--data", type=Path, help="a data set with ids that name books (default: the bundled text)")
    parser.add_argument("--short", type=Path, help="a data set of sentences, to measure the cost of planning them too")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=20_000, help="of the made corpus")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = args.data or prepare_text(Path(folder), BOOKS, 8192, "--id-field", "id")
        real, name = corpus_of(data), args.data.name if args.data else "bundled books"
    made = made_corpus(real, args.blocks)
    shards = (-(-len(real.lengths) // REAL_SHARDS), DOCUMENTS_A_SHARD)
    tables = [
        section(title, corpus, shard, args.seq_len)
        for title, corpus, shard in zip((name, f"made, {args.blocks:,} blocks"), (real, made), shards, strict=True)
    ]
    corpora = {f"books at {args.seq_len}": (made, args.seq_len)}
    if args.short:
        corpora["sentences at 128"] = (repeated(Dataset(args.short), max(WINDOWS)), 128)
    write_page(args.out, report_of(tables, costs(corpora), args.seq_len), ("numpy", "webdataset"))


def orders(corpus: Corpus, shard: int, seq_len: int) -> Iterator[tuple[str, Callable[[], Order]]]:
    """The orders to compare, the full permutation first."""

    def windowed(blocks: int) -> Order:
        return one_after_the_other(corpus, windows(corpus, blocks, seq_len))

    def streamed(buffer: int, streams: int) -> Order:
        return in_turns(corpus, buffered(corpus, buffer, streams, shard, seq_len))

    yield "full permutation", partial(windowed, corpus.n_blocks)
    for blocks in (blocks for blocks in WINDOWS if blocks < corpus.n_blocks):
        yield f"Maskwright, windows of {blocks} blocks", partial(windowed, blocks)
    n_shards = -(-len(corpus.lengths) // shard)
    for streams in (streams for streams in STREAMS if streams <= n_shards):
        for buffer in BUFFERS:
            yield f"webdataset, buffer of {buffer:,}, streams: {streams}", partial(streamed, buffer, streams)


def section(name: str, corpus: Corpus, shard: int, seq_len: int) -> str:
    title = (
        f"## {name}\n\n{corpus.n_blocks:,} blocks, {len(corpus.lengths):,} documents, {corpus.lengths.sum():,} tokens, "
        f"{len(np.unique(corpus.source)):,} sources; webdataset's shards have {shard:,} documents."
    )
    batches = [
        rows for rows in BATCHES if 3 * rows * seq_len <= corpus.lengths.sum()
    ]  # two, and an incomplete last one
    header = ["", "distance", *(f"{name}, {rows:,} rows" for name in ("variance", "together") for rows in batches)]
    full, lines = None, []
    for name, order in orders(corpus, shard, seq_len):
        found = quality(corpus, order(), batches)
        full = full or found
        variance = [f"{found.variance[rows] / full.variance[rows]:.2f}" for rows in batches]
        together = [f"{found.together[rows]:.2%}" for rows in batches]
        lines.append([name, f"{found.distance / full.distance:.2%}", *variance, *together])
        print(lines[-1], flush=True)
    return f"{title}\n\n{table(header, *lines)}\n"


def costs(corpora: dict[str, tuple[Corpus, int]]) -> str:
    """A table by window. corpora: a corpus of 2-byte tokens and its row length, by what is planned."""
    planned = [cell for name in corpora for cell in (f"planning {name}, s", "MiB")]
    lines = []
    for blocks in WINDOWS:
        cells = [f"{blocks}", f"{blocks * BLOCK_TOKENS * 2 / 2**20:,.0f}"]
        for corpus, length in corpora.values():
            seconds, peak = planning(corpus, blocks, length)
            cells += [f"{seconds:.2f}", f"{peak:,.0f}"]
        lines.append(cells)
    return table(["window", "tokens, MiB", *planned], *lines, left=0)


def report_of(tables: list[str], cost: str, seq_len: int) -> str:
    qualities = "\n".join(tables)
    return f"""# How well rows are shuffled

One epoch in rows of {seq_len}. Blocks have {BLOCK_TOKENS:,} tokens.

- distance: mean number of rows between pieces that are neighbours in the corpus, as a share of a full permutation's.
- variance: of each source's share of a batch, summed over sources, relative to a full permutation (1 is as good).
- together: rows that share a document with another row of the same batch.

webdataset shuffles shards, then samples (one per document) in a buffer. {max(BUFFERS):,} samples at a time are packed
as Maskwright packs a window. Each of several streams (ranks times workers) has its own shards; batches take a row of
each in turn.

{qualities}
By chance a source's share varies with 1 / rows of the batch. A window of W blocks adds about 1 / W: a window of as many
blocks as a batch has rows doubles the variance, and more blocks gain little. A rank holds the tokens of its window
(below). At the start of a window it plans it and reads nearly all of it.

## Costs of a window

Its tokens at two bytes each, the time to plan it on one core, and the peak memory of planning, tokens included.

{cost}
"""


if __name__ == "__main__":
    run(main)
