"""Arrays in .npy files: written atomically, read without pickle and validated."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from data_prep.common.errors import DamagedData, UserError
from data_prep.common.files import atomic_writer
from data_prep.common.reading import open_regular


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array of numbers atomically as little-endian .npy."""
    with atomic_writer(path) as file:
        np.lib.format.write_array(file, array.astype(array.dtype.newbyteorder("<")), version=(1, 0), allow_pickle=False)


@contextlib.contextmanager
def row_writer(path: Path, columns: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Write rows uint64 [n, columns] in several parts. The file is the same as by `save_array`."""
    rows = 0
    with atomic_writer(path) as file:

        def add(array: np.ndarray) -> None:
            nonlocal rows
            rows += len(array)
            file.write(np.ascontiguousarray(array, "<u8").data)

        def write_header() -> None:  # numpy leaves room in it for any number of rows
            shape = {"descr": "<u8", "fortran_order": False, "shape": (rows, columns)}
            np.lib.format.write_array_header_1_0(file, shape)

        write_header()
        yield add
        file.seek(0)
        write_header()


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
