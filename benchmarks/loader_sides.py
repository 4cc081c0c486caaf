"""The loaders that benchmarks/loader.py compares. As a command, it measures one of them.

    python -m benchmarks.loader_sides --write SIDE DATA WRITTEN SEQ_LEN
    python -m benchmarks.loader_sides SIDE DATA WRITTEN SEQ_LEN

The first writes the side's copy of the data set DATA. The second reads one epoch of it twice on one core, once to
measure the time and once to count and check the tokens, and prints JSON.
"""

import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import run
from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.format.shard_format import xxh3
from pretrain.config import DataConfig, MaskingConfig
from pretrain.data import BatchStage, Loader, LoaderStep
from pretrain.data.mixture import Mixture
from pretrain.data.packing import SPECIALS_PER_PIECE, pack, randoms_needed
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader
from pretrain.masking import IGNORED, Masked, MaskedTokens, Rows, Vocabulary, concatenated_ranges
from pretrain.objectives import Objective

SEED = 7
SLOTS = 65_536  # of a batch
WINDOW_BLOCKS = DataConfig.model_fields["window_blocks"].default
BUFFER = 10_000  # documents of a shuffle buffer, and packed together
SHARD_BYTES = 8 << 20  # of the other loaders' shards, so that there are several to shuffle
MASK_RATE = 0.15


class Batch(NamedTuple):
    """tokens int64 [R, S], padded; positions int64 [R * S] in each piece; cu_seqlens int32, padding its own piece.

    Positions and cu_seqlens are None where rows are cut across documents.
    """

    tokens: np.ndarray
    positions: np.ndarray | None
    cu_seqlens: np.ndarray | None


Watch = Callable[[np.ndarray], None]  # called with each document of another loader, before packing


@dataclass(frozen=True)
class Side:
    """A loader.

    write(data, written, seq_len): makes its copy of the data set.
    batches(data, written, seq_len, watch): one epoch; with a watch, it is checked and not timed.
    complete: whether an epoch has every document.
    per_length: whether its copy is for one sequence length.
    """

    title: str
    packages: tuple[str, ...]
    batches: Callable[[Path, Path, int, Watch | None], Iterator[Batch]]
    write: Callable[[Path, Path, int], None] | None = None
    complete: bool = True
    per_length: bool = False


# Maskwright


class NoMasking:
    """Replaces masking to time the stream alone."""

    flags = 0

    def slots(self, seq_len: int) -> int:
        return 0

    def __call__(self, rows: Rows, rate: float) -> Masked:
        nothing = np.zeros(0, dtype=np.int64)
        return Masked(rows.tokens.reshape(-1), nothing, nothing)


def vocabulary_of(data: Path) -> Vocabulary:
    return Vocabulary.of(Dataset(data).manifest.tokenizer)


def maskwright(masked: bool, data: Path, written: Path, seq_len: int, watch: Watch | None) -> Iterator[Batch]:
    vocabulary = vocabulary_of(data)
    token = MaskedTokens(MaskingConfig(rate=MASK_RATE), vocabulary, SEED, "train")
    masking: Objective = token if masked else NoMasking()
    stream = RowStream(BlockReader(Dataset(data)), SEED, WINDOW_BLOCKS, "best_fit")
    stages = [BatchStage(0, seq_len, 1, 1, SLOTS // seq_len)]
    loader = Loader(Mixture([stream], [[1.0]], SEED), stages, vocabulary, [masking], lambda _: MASK_RATE, 0)

    def epoch() -> Iterator[Batch]:
        steps, position = 0, loader.mixture.start()
        while position.sources[0].epoch == 0:
            step = loader.step(steps, position)
            steps, position, (batch,) = steps + 1, step.after, step.batches
            tokens = batch.tokens.reshape(-1, seq_len)
            if watch is not None:
                used = batch.labels != IGNORED
                batch.tokens[batch.masked_positions[used]] = batch.labels[used]
                tokens = tokens[: rows_left(stream, step, seq_len)]
            yield Batch(tokens, batch.positions, batch.cu_seqlens)
        loader.close()

    return epoch()


def rows_left(stream: RowStream, step: LoaderStep, seq_len: int) -> int | None:
    """Rows of the first epoch from a step on, if the step's batch reaches into the second; else None."""
    if step.after.sources[0].epoch == 0:
        return None
    before = step.before.sources[0]
    windows = range(before.window, stream.n_windows)
    return sum(stream.window(Position(0, window), seq_len).end_row for window in windows) - before.row


# Packing of the other loaders' documents, with Maskwright's packing


def packed(documents: Iterator[np.ndarray], data: Path, seq_len: int, watch: Watch | None) -> Iterator[Batch]:
    """Batches of documents packed into rows, BUFFER documents at a time."""
    vocabulary, rng = vocabulary_of(data), np.random.default_rng(SEED)

    def epoch() -> Iterator[Batch]:
        while buffer := list(itertools.islice(documents, BUFFER)):
            if watch is not None:
                for document in buffer:
                    watch(document)
            yield from pack_buffer(buffer, seq_len, vocabulary, rng)

    return epoch()


def pack_buffer(
    buffer: list[np.ndarray], seq_len: int, vocabulary: Vocabulary, rng: np.random.Generator
) -> Iterator[Batch]:
    source = np.concatenate(buffer)
    lengths = np.array([len(document) for document in buffer])
    random = rng.integers(0, 2**64, randoms_needed(lengths, seq_len), dtype=np.uint64)
    rows = pack(np.cumsum(lengths) - lengths, lengths, seq_len, random, "best_fit")
    size = rows.piece_length + SPECIALS_PER_PIECE
    row_of_piece = np.repeat(np.arange(len(rows)), np.diff(rows.row_starts))
    before = np.cumsum(size) - size
    start = row_of_piece * seq_len + before - before[rows.row_starts[row_of_piece]]
    tokens = np.full(len(rows) * seq_len, vocabulary.pad, dtype=np.int64)
    tokens[start], tokens[start + size - 1] = vocabulary.cls, vocabulary.sep
    places = concatenated_ranges(rows.piece_start, rows.piece_length)
    tokens[concatenated_ranges(start + 1, rows.piece_length)] = source[places]
    ends = np.union1d(start + size, np.arange(1, len(rows) + 1) * seq_len)
    for slot in range(0, len(tokens), SLOTS):
        stop = min(slot + SLOTS, len(tokens))
        low, high = np.searchsorted(ends, [slot, stop], side="right")
        cu_seqlens = np.concatenate([[0], ends[low:high] - slot]).astype(np.int32)
        lengths = np.diff(cu_seqlens)
        positions = concatenated_ranges(np.zeros(len(lengths), dtype=np.int64), lengths)
        yield Batch(tokens[slot:stop].reshape(-1, seq_len), positions, cu_seqlens)


def documents_of(data: Path) -> Iterator[np.ndarray]:
    dataset = Dataset(data)
    for block in range(dataset.n_blocks):
        yield from np.split(dataset.tokens(block), np.cumsum(dataset.document_lengths(block))[:-1])


def rows_of(data: Path, seq_len: int) -> Iterator[np.ndarray]:
    """The data set as rows cut across documents, without an incomplete last row."""
    rest = np.zeros(0, dtype=Dataset(data).dtype)
    for document in documents_of(data):
        rest = np.concatenate([rest, document])
        whole = len(rest) // seq_len * seq_len
        yield from rest[:whole].reshape(-1, seq_len)
        rest = rest[whole:]


def stacked(rows: Iterator[Any]) -> Iterator[Batch]:
    """Batches of rows from a torch DataLoader."""
    for batch in rows:
        tokens = batch["tokens"] if isinstance(batch, dict) else batch
        yield Batch(tokens.numpy(), None, None)


# webdataset: one document per sample; shards, then samples are shuffled in a buffer


def write_webdataset(data: Path, written: Path, seq_len: int) -> None:
    import webdataset as wds

    per_shard = max(1, int(SHARD_BYTES / (1024 + 2 * mean_length(data))))
    samples = enumerate(documents_of(data))
    sample = next(samples, None)
    while sample is not None:
        with wds.TarWriter(str(written / f"{sample[0]:09d}.tar"), encoder=False, mtime=0) as writer:
            for _ in range(per_shard):
                if sample is not None:
                    writer.write({"__key__": f"{sample[0]:09d}", "tokens": sample[1].tobytes()})
                    sample = next(samples, None)


def mean_length(data: Path) -> float:
    totals = Dataset(data).manifest.totals
    return totals.tokens / totals.documents


def webdataset(data: Path, written: Path, seq_len: int, watch: Watch | None) -> Iterator[Batch]:
    import webdataset as wds

    shards = sorted(map(str, written.glob("*.tar")))
    samples = wds.WebDataset(shards, shardshuffle=100, seed=SEED).shuffle(BUFFER)
    dtype = Dataset(data).dtype
    return packed((np.frombuffer(sample["tokens"], dtype) for sample in samples), data, seq_len, watch)


# mosaicml-streaming: MDS shards, its default shuffle

MDS_BATCH = 256  # documents


def write_mds(by_rows: bool, data: Path, written: Path, seq_len: int) -> None:
    from streaming import MDSWriter

    samples = rows_of(data, seq_len) if by_rows else documents_of(data)
    encoding = f"ndarray:{Dataset(data).dtype.name}" + (f":{seq_len}" if by_rows else "")
    with MDSWriter(out=str(written), columns={"tokens": encoding}, size_limit=SHARD_BYTES) as writer:
        for sample in samples:
            writer.write({"tokens": sample})


def mds_documents(data: Path, written: Path, seq_len: int, watch: Watch | None) -> Iterator[Batch]:
    from streaming import StreamingDataset

    # It reads eight batches ahead.
    samples = StreamingDataset(local=str(written), shuffle=True, shuffle_seed=SEED, batch_size=MDS_BATCH)
    return packed((sample["tokens"] for sample in samples), data, seq_len, watch)


def mds_rows(data: Path, written: Path, seq_len: int, watch: Watch | None) -> Iterator[Batch]:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    rows = SLOTS // seq_len
    samples = StreamingDataset(local=str(written), shuffle=True, shuffle_seed=SEED, batch_size=rows)
    return stacked(iter(DataLoader(samples, batch_size=rows)))


# litdata: its chunks, shuffled; its documentation recommends TokensLoader for pretraining


def write_litdata(by_rows: bool, data: Path, written: Path, seq_len: int) -> None:
    from litdata import TokensLoader, optimize

    optimize(
        fn=documents_of,
        inputs=[data],
        output_dir=str(written),
        num_workers=1,
        reorder_files=False,
        verbose=False,
        # For rows, the size of a chunk is in tokens, a multiple of the row length.
        chunk_size=SHARD_BYTES // 2 // seq_len * seq_len if by_rows else None,
        chunk_bytes=None if by_rows else SHARD_BYTES,
        item_loader=TokensLoader(block_size=seq_len) if by_rows else None,
    )


def litdata_documents(data: Path, written: Path, seq_len: int, watch: Watch | None) -> Iterator[Batch]:
    from litdata import StreamingDataset

    samples = StreamingDataset(str(written), shuffle=True, seed=SEED)
    # Its iterator starts again after its end.
    return packed((sample for sample in samples), data, seq_len, watch)


def litdata_rows(data: Path, written: Path, seq_len: int, watch: Watch | None) -> Iterator[Batch]:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    loader = TokensLoader(block_size=seq_len)
    samples = StreamingDataset(str(written), item_loader=loader, shuffle=True, seed=SEED)
    return stacked(iter(StreamingDataLoader(samples, batch_size=SLOTS // seq_len, num_workers=0)))


MDS, LITDATA = ("mosaicml-streaming", "torch"), ("litdata", "torch")
SIDES = {
    "maskwright": Side("Maskwright", (), partial(maskwright, False)),
    "maskwright-masked": Side("Maskwright, with masking", (), partial(maskwright, True)),
    "webdataset": Side("webdataset", ("webdataset",), webdataset, write_webdataset),
    "mds": Side("mosaicml-streaming", MDS, mds_documents, partial(write_mds, False)),
    "litdata": Side("litdata", LITDATA, litdata_documents, partial(write_litdata, False)),
    "mds-rows": Side("mosaicml-streaming, rows", MDS, mds_rows, partial(write_mds, True), False, True),
    "litdata-rows": Side("litdata, TokensLoader", LITDATA, litdata_rows, partial(write_litdata, True), False, True),
}


def measure(side: Side, data: Path, written: Path, seq_len: int) -> dict[str, Any]:
    """Seconds of one epoch after opening, by the clock and of the processor; its tokens, specials, slots, and share of
    all tokens.

    Raises:
        UserError: if a complete epoch has other tokens or documents than the data set.
    """
    batches = side.batches(data, written, seq_len, None)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    timed_slots = sum(batch.tokens.size for batch in batches)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    vocabulary = vocabulary_of(data)
    histogram, slots, seen = np.zeros(vocabulary.size, dtype=np.int64), 0, Counter[int]()

    def watch(document: np.ndarray) -> None:
        seen[xxh3(document.tobytes())] += 1

    for batch in side.batches(data, written, seq_len, watch):
        histogram += np.bincount(batch.tokens.reshape(-1), minlength=vocabulary.size)
        slots += batch.tokens.size
    specials = int(histogram[[vocabulary.cls, vocabulary.sep]].sum())
    histogram[[vocabulary.pad, vocabulary.cls, vocabulary.sep]] = 0
    expected, documents = expectation(data)
    tokens, all_tokens = int(histogram.sum()), int(expected.sum())
    if side.complete and not (np.array_equal(histogram, expected) and (not seen or seen == documents)):
        raise UserError(f"{side.title} delivered {tokens} tokens that are not the data set's {all_tokens}")
    # Not equal: some shuffles differ each time, and the last batch of an endless stream continues.
    if abs(timed_slots - slots) > SLOTS + 0.01 * slots:
        raise UserError(f"{side.title} gave {timed_slots} slots when timed, {slots} when checked")
    return {
        "seconds": seconds * slots / timed_slots,
        "cpu": cpu * slots / timed_slots,
        "tokens": tokens,
        "specials": specials,
        "slots": slots,
        "share": tokens / all_tokens,
    }


def expectation(data: Path) -> tuple[np.ndarray, Counter[int]]:
    """Occurrences of each token id and of each document (by hash) in the data set."""
    vocabulary = vocabulary_of(data)
    histogram, documents = np.zeros(vocabulary.size, dtype=np.int64), Counter[int]()
    for document in documents_of(data):
        documents[xxh3(document.tobytes())] += 1
    dataset = Dataset(data)
    for block in range(dataset.n_blocks):
        histogram += np.bincount(dataset.tokens(block), minlength=vocabulary.size)
    histogram[[vocabulary.pad, vocabulary.cls, vocabulary.sep]] = 0
    return histogram, documents


def main() -> None:
    *write, name, data, written, seq_len = sys.argv[1:]
    side = SIDES[name]
    if write:
        assert side.write is not None
        side.write(Path(data), Path(written), int(seq_len))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(measure(side, Path(data), Path(written), int(seq_len))))


if __name__ == "__main__":
    run(main)
