"""Arrays as .npy files."""

import io

import numpy as np


def npy_bytes(array: np.ndarray) -> bytes:
    """The content of a little-endian .npy file of numbers, which is read without pickle."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array.astype(array.dtype.newbyteorder("<")), version=(1, 0), allow_pickle=False)
    return file.getvalue()
