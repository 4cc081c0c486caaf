"""A rank's share of each global batch, built ahead of time by a thread."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_prep.errors import UserError
from pretrain.config import TrainConfig
from pretrain.data.batch import Batch, build_batch
from pretrain.data.stream import Position, Row, RowStream
from pretrain.masking.reference import TokenMasking
from pretrain.masking.vocabulary import Vocabulary

_AHEAD = 2  # global batches built before they are asked for


@dataclass(frozen=True)
class BatchShape:
    """How a global batch of rows is spread: global rows = world_size * accumulation * micro."""

    world_size: int
    accumulation: int
    micro: int

    @property
    def rows(self) -> int:
        """Rows of the global batch."""
        return self.world_size * self.accumulation * self.micro

    @classmethod
    def of(cls, train: TrainConfig, world_size: int) -> "BatchShape":
        """Divide the global batch.

        Raises:
            UserError: if it does not divide evenly.
        """
        batch = train.global_batch_size
        if batch % world_size:
            raise UserError(
                f"train.global_batch_size is {batch}, which {world_size} processes cannot share evenly; "
                f"choose a multiple of {world_size}"
            )
        micro = min(train.micro_batch_size or batch, batch // world_size)
        if batch % (world_size * micro):
            raise UserError(
                f"train.global_batch_size ({batch}) is not a multiple of {world_size} processes times "
                f"train.micro_batch_size ({micro}); change one of the two"
            )
        return cls(world_size, batch // (world_size * micro), micro)


@dataclass(frozen=True)
class Step:
    """This rank's micro-batches of one global batch, and where the stream stands before and after it."""

    batches: list[Batch]
    before: Position
    after: Position


class Loader:
    """Builds batches for one rank.

    Args:
        stream: the rows of the data set.
        seq_len: slots of a row.
        vocabulary, masking: what to mask, and how.
        shape, rank: which rows are this rank's: rows are dealt out rank by rank, micro-batch by micro-batch.
    """

    def __init__(
        self,
        stream: RowStream,
        seq_len: int,
        vocabulary: Vocabulary,
        masking: TokenMasking,
        shape: BatchShape,
        rank: int,
    ):
        self._stream, self._seq_len, self._shape, self._rank = stream, seq_len, shape, rank
        self._vocabulary, self._masking = vocabulary, masking

    def step(self, position: Position) -> Step:
        """The batches of the global batch that starts at `position`."""
        shape = self._shape
        mine = shape.accumulation * shape.micro
        rows = self._stream.batch(position, shape.rows, range(self._rank * mine, (self._rank + 1) * mine))
        batches = [self._build(rows[first : first + shape.micro]) for first in range(0, mine, shape.micro)]
        return Step(batches, position, self._stream.advance(position, shape.rows))

    def held_out(self, max_rows: int) -> Iterator[Batch]:
        """This rank's batches over the first `max_rows` rows of epoch 0, in the same number on every rank."""
        shape = self._shape
        pending: list[Row] = []
        for number, row in enumerate(self._stream.epoch_rows(0)):
            if number == max_rows:
                break
            pending.append(row)
            if len(pending) == shape.world_size * shape.micro:
                yield self._build(self._share(pending))
                pending = []
        if pending:
            yield self._build(self._share(pending))

    def _share(self, rows: list[Row]) -> list[Row]:
        return rows[self._rank * self._shape.micro : (self._rank + 1) * self._shape.micro]

    def _build(self, rows: list[Row]) -> Batch:
        return build_batch(rows, self._shape.micro, self._seq_len, self._vocabulary, self._masking)


class Prefetcher:
    """Runs a Loader ahead in a thread. What it has built but nobody took does not count as consumed."""

    def __init__(self, loader: Loader, position: Position):
        self._queue: queue.Queue[Step | Exception] = queue.Queue(maxsize=_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(loader, position), name="prefetch", daemon=True)
        self._thread.start()

    def next(self) -> Step:
        """The next step's batches; re-raises what the loader raised."""
        step = self._queue.get()
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _fill(self, loader: Loader, position: Position) -> None:
        while not self._closed.is_set():
            try:
                step = loader.step(position)
            except Exception as error:
                self._queue.put(error)
                return
            position = step.after
            self._queue.put(step)


def vocabulary_of(size: int, special_ids: dict[str, int], all_special_ids: list[int]) -> Vocabulary:
    """The vocabulary a data set was made with.

    Raises:
        UserError: if it lacks a special token that masking or packing needs.
    """
    missing = [name for name in ("pad", "cls", "sep", "mask") if name not in special_ids]
    if missing:
        raise UserError(
            f"the data set's tokenizer has no {' and no '.join(missing)} token; prepare it with one that has"
        )
    named = {name: special_ids[name] for name in ("pad", "cls", "sep", "mask")}
    vocabulary = Vocabulary(size=size, special_ids=frozenset(all_special_ids), **named)
    if np.count_nonzero(vocabulary.is_ordinary) < 2:
        raise UserError("the data set's vocabulary has fewer than two ordinary tokens; train a tokenizer on more text")
    return vocabulary
