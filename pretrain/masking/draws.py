"""The random numbers of a row: functions of a key, the row's place in the stream, and a column.

A counter of Philox is (column // 8, row, window, source and epoch); its four words of 32 bits are eight numbers of 16.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.philox import Key, philox


def of_columns(key: Key, places: NDArray[np.int64], columns: int) -> NDArray[np.uint16]:
    """A uniform 16-bit number for each column of each row [R, 3]: [R, columns].

    Column c has the bits from 16 * (c % 8) on of the four words, lowest first, of counter c // 8.
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
    """Two columns of 16 bits, the lower half first, as one of 32: [R, 2 * C] to [R, C]."""
    return numbers[:, 0::2].astype(np.int64) | numbers[:, 1::2].astype(np.int64) << 16


def scaled(number: NDArray[np.int64], below: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """A 32-bit number as one from 0 to before `below` (0 where that is 0), uniform to within below / 2**32."""
    return (number * below) >> 32
