"""Row stream of one data set in training order: a pure function of (data set, seed, position).

In each epoch a keyed permutation orders the blocks, and `window_blocks` consecutive blocks form a window. The documents
of a window are packed into rows, and the rows are shuffled. The position is the only state. Ranks do not communicate:
each one computes the same rows and reads only the blocks it trains on.
"""

import contextlib
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from pretrain.data.packing import Mode
from pretrain.data.source_order import SourceOrder, Turns
from pretrain.data.window import BlockReader, Past, ShuffleWindow
from pretrain.philox import derive_key, permute

PLAN_VERSION = 3  # increase it when the same position would yield other rows or masks


@dataclass(frozen=True)
class Position:
    """The next row to read: number `row` of window `window` of epoch `epoch`.

    past: (seq_len, end row) of each earlier sequence length within this window, in order.
    turns: of a data set whose sources are mixed, the changes of their shares (SourceOrder).
    """

    epoch: int = 0
    window: int = 0
    row: int = 0
    past: Past = ()
    turns: Turns = ()

    def restarted(self) -> "Position":
        """The beginning of the next epoch; the same place at the beginning of one."""
        return self if self == Position(self.epoch) else Position(self.epoch + 1)

    def after_seq_len(self, seq_len: int) -> "Position":
        """The same place after rows of `seq_len` slots, for a new row length."""
        if self.row == (self.past[-1][1] if self.past else 0):  # no row of that length was read in this window
            return self
        return replace(self, past=(*self.past, (seq_len, self.row)))


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a global batch that come from one window.

    source, epoch, window_number: origin of the rows, which keys their draws.
    numbers [R] int64: row numbers in the window.
    """

    source: int
    epoch: int
    window_number: int
    window: ShuffleWindow
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: slice) -> "Part":
        return replace(self, numbers=self.numbers[rows])


_FOREIGN = "the position is not one of these data: it is at"
_At = tuple[Position, int]  # the start of a window, and the sequence length


class RowStream:
    """An endless sequence of rows over the epochs of one data set.

    Args:
        reader: the data set, at least one block.
        seed: keys the order of blocks and of rows.
        window_blocks: blocks that are packed and shuffled together.
        packing: how documents share rows.
        source: number of the data set in a mixture; two sources never share an order.
        look_ahead: prepare the next window in the background; False if only the first rows are read.
        order: of the blocks, if the sources of the data set are mixed; the position then stays in its epoch.
        only: [blocks] to read; all by default.
    """

    def __init__(
        self,
        reader: BlockReader,
        seed: int,
        window_blocks: int,
        packing: Mode,
        source: int = 0,
        look_ahead: bool = True,
        order: SourceOrder | None = None,
        only: NDArray[np.int64] | None = None,
    ):
        self.reader, self._window_blocks, self._packing, self._source = reader, window_blocks, packing, source
        self._prepares, self._seed, self.order, self._only = look_ahead, seed, order, only
        self._n_blocks = reader.blocks.n_blocks if only is None else len(only)
        self._block_key = derive_key(seed, f"blocks of source {source}")
        self._row_key = derive_key(seed, f"rows of source {source}")
        self.n_windows = -(-self._n_blocks // window_blocks)
        self.latest: tuple[_At, ShuffleWindow] | None = None
        self.ahead: tuple[_At, Future[ShuffleWindow]] | None = None

    def take(self, position: Position, rows: int, seq_len: int, phase: int = 0) -> tuple[list[Part], Position]:
        """Take `rows` rows of `seq_len` slots from `position`. Returns them and the position after them.

        Mixed sources have the shares of the phase from the next window on.
        """
        if self.order:
            turns = self.order.turned(position.turns, phase, position.window + (position.row > 0))
            position = replace(position, turns=turns)
        parts = []
        while rows:
            window = self.window(position, seq_len)
            if not window.first_row <= position.row <= window.end_row:
                raise UserError(f"{_FOREIGN} row {position.row} of a window that ends at {window.end_row}")
            here = min(rows, window.end_row - position.row)
            numbers = window.in_reading_order(position.row, here)
            parts.append(Part(self._source, position.epoch, position.window, window, numbers))
            rows -= here
            position = replace(position, row=position.row + here)
            if position.row == window.end_row:
                position = self._next_window(position)
            elif self._prepares and 2 * (position.row - window.first_row) >= len(window.rows):
                self._look_ahead(window, self._next_window(position), seq_len)
        return parts, position

    def window(self, position: Position, seq_len: int) -> ShuffleWindow:
        """The window at a position. The latest is kept until another is requested or `release` is called."""
        at = replace(position, row=0), seq_len
        if self.latest is None or self.latest[0] != at:
            self.latest = None  # frees its memory, unless a batch still holds its rows
            prepared = self.ahead[1] if self.ahead and self.ahead[0] == at else None
            window = prepared.result() if prepared else self._plan(position, seq_len)
            self.latest, self.ahead = (at, window), None
        return self.latest[1]

    def release(self) -> None:
        """Release the memory of the latest window and of the prepared one."""
        self.latest = self.ahead = None

    def progress(self, position: Position) -> float:
        """Number of epochs read; the current one counts by its windows. Of mixed sources, blocks read a block."""
        windows = self._n_blocks / self._window_blocks if self.order else self.n_windows
        return position.epoch + position.window / windows

    def close(self) -> None:
        """Stop the reading threads."""
        self.reader.close()

    def _plan(self, position: Position, seq_len: int) -> ShuffleWindow:
        epoch, number = position.epoch, position.window
        if self.order:
            ids = self.order.window(position.turns, number, self._seed, f"source {self._source} from start {epoch}")
            counter = epoch << 32 | number
        elif number >= self.n_windows:
            raise UserError(f"{_FOREIGN} window {number} of {self.n_windows}")
        else:
            first = number * self._window_blocks
            places = np.arange(first, min(first + self._window_blocks, self._n_blocks))
            ids = permute(places, self._n_blocks, self._block_key, epoch)
            ids = ids if self._only is None else self._only[ids]
            counter = epoch * self.n_windows + number
        return ShuffleWindow(self.reader, ids, seq_len, self._packing, self._row_key, counter, position.past)

    def _look_ahead(self, window: ShuffleWindow, position: Position, seq_len: int) -> None:
        """Plan the next window in the background, and read the blocks that this rank is likely to need.

        Rows are assigned by their place in the window, so a rank needs about the same part of each window.
        """
        at = position, seq_len
        if self.ahead is None or self.ahead[0] != at:

            def planned() -> ShuffleWindow:
                ahead = self._plan(position, seq_len)
                with contextlib.suppress(UserError):  # the error is raised again if the block is needed
                    ahead.load_like(window)
                return ahead

            self.ahead = at, self.reader.in_background(planned)

    def _next_window(self, position: Position) -> Position:
        if self.order:
            return replace(position, window=position.window + 1, row=0, past=())
        last = position.window + 1 == self.n_windows
        return Position(position.epoch + 1) if last else Position(position.epoch, position.window + 1)
