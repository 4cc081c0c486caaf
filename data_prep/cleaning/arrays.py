"""Arrays in .npy files: written atomically, read without pickle and validated."""

from pathlib import Path

import numpy as np

from data_prep.common.errors import DamagedData, UserError
from data_prep.common.files import atomic_writer
from data_prep.common.reading import open_regular


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array of numbers atomically as little-endian .npy."""
    with atomic_writer(path) as file:
        np.lib.format.write_array(file, array.astype(array.dtype.newbyteorder("<")), version=(1, 0), allow_pickle=False)


def load_integers(path: Path, dimensions: int, dtype: str | None = None) -> np.ndarray:
    """A memory-mapped array of integers. Raises DamagedData if the file is missing or has another content."""
    remedy = "delete it and run the same command again."
    try:
        open_regular(path).close()
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UserError as error:
        raise DamagedData(f"{error} {remedy.capitalize()}") from error
    except Exception as error:  # numpy parses the header as Python, and raises many types
        raise DamagedData(f"{path} is not a valid array of numbers; {remedy}") from error
    is_integer = isinstance(array, np.ndarray) and array.dtype.kind in "iu"
    if not is_integer or array.ndim != dimensions or array.dtype != np.dtype(dtype or array.dtype):
        raise DamagedData(f"{path} holds another kind of array; {remedy}")
    return array
