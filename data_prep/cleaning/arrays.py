"""Arrays in .npy files, written atomically, read without pickle and checked."""

from pathlib import Path

import numpy as np

from data_prep.errors import DamagedData
from data_prep.files import atomic_writer


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array of numbers as .npy, little-endian; the file appears when it is complete and on disk."""
    with atomic_writer(path) as file:
        np.lib.format.write_array(file, array.astype(array.dtype.newbyteorder("<")), version=(1, 0), allow_pickle=False)


def load_uint64(path: Path) -> np.ndarray:
    """A mapped uint64 [n, columns] array. Raises DamagedData if the file is missing, cut short or of another kind."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DamagedData(f"{path} cannot be read ({error}); delete it and run the same command again.") from error
    if array.dtype != np.dtype("<u8") or array.ndim != 2:
        raise DamagedData(
            f"{path} holds {array.dtype} {list(array.shape)} instead of uint64 rows; delete it and rerun."
        )
    return array
