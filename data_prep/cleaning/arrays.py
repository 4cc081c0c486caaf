"""Arrays in .npy files, read without pickle and validated."""

import io
from pathlib import Path

import numpy as np

from data_prep.common.errors import DamagedData, UserError
from data_prep.common.reading import open_regular


def npy_bytes(array: np.ndarray) -> bytes:
    """The content of a little-endian .npy file of numbers."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array.astype(array.dtype.newbyteorder("<")), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def load_pairs(path: Path) -> np.ndarray:
    """An array uint64 [n, 2]. Raises DamagedData if the file is missing or has another content."""
    remedy = "delete it and run the same command again."
    try:
        open_regular(path).close()
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UserError as error:
        raise DamagedData(f"{error} {remedy.capitalize()}") from error
    except Exception as error:  # numpy parses the header as Python, and raises many types
        raise DamagedData(f"{path} is not a valid array of numbers; {remedy}") from error
    if not isinstance(array, np.ndarray) or array.dtype != "<u8" or array.ndim != 2 or array.shape[1] != 2:
        raise DamagedData(f"{path} holds another kind of array; {remedy}")
    return np.array(array)
