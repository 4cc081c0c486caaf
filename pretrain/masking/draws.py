"""Random numbers of a row: functions of a key, the row's place in the stream, and a column.

A Philox counter is (column // 8, row, window, source and epoch). Its four 32-bit words are eight 16-bit numbers.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.philox import Key, philox


def of_columns(key: Key, places: NDArray[np.int64], columns: int) -> NDArray[np.uint16]:
    """A uniform 16-bit number for each column of each row [R, 3]: [R, columns].

    Column c is the 16 bits from bit 16 * (c % 8) of counter c // 8, whose four words are in order, lowest first.
    """
    groups = np.arange(-(-columns // 8))
    w0, w1, w2, w3 = philox(key, groups, places[:, None, 2], places[:, None, 1], places[:, None, 0])
    numbers = np.empty((*w0.shape, 2), dtype="<u8")
    numbers[..., 0], numbers[..., 1] = w0 | (w1 << np.uint64(32)), w2 | (w3 << np.uint64(32))
    return numbers.view("<u2").reshape(len(places), 8 * len(groups))[:, :columns]


def of_rows(key: Key, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """A uniform 32-bit number for each row [R, 3]: [R]."""
    return wide(of_columns(key, places, 2))[:, 0]


def wide(numbers: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Join two 16-bit columns, lower half first, to one of 32 bits: [R, 2 * C] to [R, C]."""
    return numbers[:, 0::2].astype(np.int64) | numbers[:, 1::2].astype(np.int64) << 16


def scaled(number: NDArray[np.int64], below: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Scale a 32-bit number to 0..below - 1 (0 if `below` is 0), uniform to within below / 2**32."""
    return (number * below) >> 32
