"""Shuffle window: consecutive blocks of an epoch's order, packed into rows together and read block by block.

The plan needs only document lengths. A block is read, in one contiguous read, when a row first needs one of its tokens.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import DamagedData
from pretrain.data.packing import Mode, PackedLayout, pack, randoms_needed, remaining
from pretrain.masking import concatenated_ranges
from pretrain.philox import Key, draw, permute

_READERS = 8  # parallel block reads: on a network each read waits for its own response
_SUBSTITUTES = 64  # blocks tried in place of a damaged one
_WARNINGS = 10  # damaged blocks that a process reports; the metric data/replaced_tokens counts the tokens of all
T = TypeVar("T")
Past = tuple[tuple[int, int], ...]


class Blocks(Protocol):
    """The part of a data set that the stream uses (data_prep.format.Dataset)."""

    n_blocks: int
    dtype: np.dtype

    def document_lengths(self, block: int) -> NDArray[np.uint32]: ...

    def read_tokens(self, block: int, out: NDArray[np.unsignedinteger]) -> None: ...


ReadFlags = Callable[[NDArray[np.unsignedinteger], int], NDArray[np.uint8]]
"""(tokens [T], block) -> flags of each token [T]."""


@dataclass(frozen=True)
class Space:
    """Memory for tokens [T], and for their uint8 flags if the stream has flags."""

    tokens: NDArray[np.unsignedinteger]
    flags: NDArray[np.uint8] | None

    def part(self, which: slice | NDArray[np.int64]) -> "Space":
        """A view of a range, or a copy of the chosen places."""
        return Space(self.tokens[which], None if self.flags is None else self.flags[which])

    def fill(self, source: "Space") -> None:
        """Copy `source` into this space, repeated or cut to its length."""
        self.tokens[:] = np.resize(source.tokens, len(self.tokens))
        if self.flags is not None and source.flags is not None:
            self.flags[:] = np.resize(source.flags, len(self.flags))


class BlockReader:
    """Reads blocks for a stream in parallel, and replaces damaged blocks.

    Args:
        blocks: the data set.
        substitute: key for the choice of replacements of damaged blocks; None if damage ends the run. The tokens of a
            replacement are repeated or cut to the needed length, so the plan stays the same on every rank.
        flags: flags of a block's tokens, if any.
        groups: [blocks] of each group, int64; only a block of its group replaces a block. By default all are one group.
    """

    def __init__(
        self,
        blocks: Blocks,
        substitute: Key | None = None,
        flags: ReadFlags | None = None,
        groups: Sequence[NDArray[np.int64]] = (),
    ):
        self.blocks, self._substitute, self.flags, self._groups = blocks, substitute, flags, groups
        self._reported: set[int] = set()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="read-blocks")

    def read(self, blocks: list[int], outs: list[Space]) -> list[bool]:
        """Fill each space with a block's tokens. Returns for each block whether it was intact, and not replaced.

        Raises DamagedData for a block that differs from its checksum or cannot be read, and may not be replaced.
        """
        if len(blocks) == 1:  # without a thread
            return [self._read(blocks[0], outs[0])]
        return list(self._pool.map(self._read, blocks, outs))

    def space(self, tokens: int) -> Space:
        """Allocate memory for `tokens` tokens, and for their flags if the stream has flags."""
        return Space(np.empty(tokens, self.blocks.dtype), np.empty(tokens, np.uint8) if self.flags else None)

    def in_background(self, job: Callable[[], T]) -> Future[T]:
        """Run a job in one of the reading threads."""
        return self._pool.submit(job)

    def close(self) -> None:
        """Stop the reading threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, block: int, out: Space) -> bool:
        try:
            self._read_block(block, out)
        except DamagedData as error:
            if self._substitute is None:
                raise
            self._substitute_block(block, out, error, self._substitute)
            return False
        return True

    def _read_block(self, block: int, out: Space) -> None:
        self.blocks.read_tokens(block, out.tokens)
        if out.flags is not None and self.flags:
            out.flags[:] = self.flags(out.tokens, block)

    def _substitute_block(self, block: int, out: Space, error: DamagedData, key: Key) -> None:
        group = next((group for group in self._groups if block in group), np.arange(self.blocks.n_blocks))
        n_blocks = len(group)
        first = int(draw(key, 1, block & 0xFFFFFFFF, block >> 32, 0)[0] % np.uint64(n_blocks))
        places = (first + np.arange(min(_SUBSTITUTES, n_blocks))) % n_blocks
        for other in group[permute(places, n_blocks, key, 0)].tolist():
            try:
                space = self.space(int(self.blocks.document_lengths(other).sum()))
                self._read_block(other, space)
            except DamagedData:
                continue
            if block not in self._reported and len(self._reported) < _WARNINGS:
                self._reported.add(block)
                print(f"warning: {error} Tokens of block {other} replace it.", file=sys.stderr, flush=True)
            out.fill(space)
            return
        raise error


class ShuffleWindow:
    """The rows of one window.

    Args:
        reader: reads the tokens.
        ids: [B] the window's blocks.
        seq_len, packing: how rows are made.
        key, counter: of the random numbers that shuffle pieces and rows.
        past: (seq_len, end row) of each earlier sequence length. Its unread pieces are joined where they touch and
            packed again.
    """

    def __init__(
        self,
        reader: BlockReader,
        ids: NDArray[np.int64],
        seq_len: int,
        packing: Mode,
        key: Key,
        counter: int,
        past: Past = (),
    ):
        self.reader, self.ids = reader, ids.tolist()
        lengths = [reader.blocks.document_lengths(block).astype(np.int64) for block in self.ids]
        self._block_starts = np.concatenate([[0], np.cumsum([int(block.sum()) for block in lengths])])
        documents = np.concatenate(lengths)
        document_starts = np.cumsum(documents) - documents
        starts, sizes = document_starts, documents
        self.first_row = 0
        for number, (length, row) in enumerate((*past, (seq_len, -1))):
            random = draw(key, randoms_needed(sizes, length), counter & 0xFFFFFFFF, counter >> 32, number)
            rows = pack(starts, sizes, length, random, packing)
            if row >= 0:
                starts, sizes = remaining(rows, row - self.first_row, document_starts)
                self.first_row = row
        self.rows: PackedLayout = rows
        self._space = reader.space(int(self._block_starts[-1]))
        self.loaded = np.zeros(len(self.ids), dtype=np.bool_)
        self._damaged = np.zeros(len(self.ids), dtype=np.bool_)

    @property
    def end_row(self) -> int:
        """One past the number of the last row; numbering continues from earlier sequence lengths."""
        return self.first_row + len(self.rows)

    def in_reading_order(self, first: int, count: int) -> NDArray[np.int64]:
        """Row numbers first .. first + count - 1, ordered by the place of their first piece.

        Ranks take rows in this order, so that each needs few of a window's blocks.
        """
        numbers = np.arange(first, first + count)
        return numbers[np.argsort(self.rows.piece_start[self.rows.row_starts[numbers - self.first_row]])]

    def pieces(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The pieces of rows [R], row after row: starts [P] in `tokens`, lengths [P], number per row [R]."""
        row_starts = self.rows.row_starts
        first = row_starts[numbers - self.first_row]
        counts = row_starts[numbers - self.first_row + 1] - first
        places = concatenated_ranges(first, counts)
        return self.rows.piece_start[places], self.rows.piece_length[places], counts

    def tokens(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[Space, int]:
        """The concatenated tokens of pieces [P], and how many of them replace damaged ones.

        Raises:
            DamagedData: see BlockReader.
        """
        block = np.searchsorted(self._block_starts, starts, side="right") - 1
        needed = np.zeros(len(self.ids), dtype=np.bool_)
        needed[block] = True
        self._load(np.flatnonzero(needed & ~self.loaded).tolist())
        replaced = int(lengths[self._damaged[block]].sum()) if self._damaged.any() else 0
        return self._space.part(concatenated_ranges(starts, lengths)), replaced

    def load_like(self, other: "ShuffleWindow") -> None:
        """Read the blocks at the same places that `other` has read."""
        self._load(np.flatnonzero(other.loaded[: len(self.ids)]).tolist())

    def _load(self, missing: list[int]) -> None:
        """Read blocks by their number in the window."""
        if missing:
            outs = [self._space.part(slice(self._block_starts[b], self._block_starts[b + 1])) for b in missing]
            intact = self.reader.read([self.ids[b] for b in missing], outs)
            self._damaged[missing] = ~np.array(intact)
            self.loaded[missing] = True
