"""Number of words between white space and size of many texts."""

from collections.abc import Sequence

import numpy as np

_SPACES = (
    "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
_CODES = [int.from_bytes(space.encode().ljust(3, b"\0"), "big") for space in _SPACES]  # of 2 or 3 bytes


def count_words(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Words, as `str.split` finds them, and UTF-8 bytes of each text, int64 [n_texts] each."""
    # Three times as fast as str.split, which would make a task with a fast tokenizer 30% slower.
    sizes = np.array([len(text) if text.isascii() else len(text.encode()) for text in texts], np.int64)
    data = np.frombuffer("\n".join(["", *texts, ""]).encode(), np.uint8)
    space = (data - np.uint8(9) <= 4) | (data - np.uint8(28) <= 4)  # below 9 and 28, the difference wraps around
    first = np.flatnonzero((data == 0xC2) | (data - np.uint8(0xE1) <= 2))  # of characters that may be white space
    codes = data[first].astype(int) << 16 | data[first + 1].astype(int) << 8
    codes |= np.where(data[first] == 0xC2, 0, data[first + 2])
    first = first[np.isin(codes, _CODES)]
    space[first] = space[first + 1] = True
    space[first[data[first] != 0xC2] + 2] = True
    starts = np.flatnonzero(space[:-1] > space[1:])
    return np.diff(np.searchsorted(starts, np.append(0, np.cumsum(sizes + 1)))), sizes
