"""Arrays in .npy files, written atomically, read without pickle and checked."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from data_prep.errors import DamagedData, UserError, one_line
from data_prep.files import atomic_writer
from data_prep.reading import open_regular, shown_path


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array of numbers as .npy, little-endian; the file appears when it is complete and on disk."""
    with atomic_writer(path) as file:
        np.lib.format.write_array(file, array.astype(array.dtype.newbyteorder("<")), version=(1, 0), allow_pickle=False)


@contextlib.contextmanager
def row_writer(path: Path, columns: int) -> Iterator[Callable[[np.ndarray], None]]:
    """As save_array, for rows uint64 [n, columns] that are given some at a time and are too many to be kept."""
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


def load_uint64(path: Path) -> np.ndarray:
    """A mapped uint64 [n, columns] array. Raises DamagedData if the file is missing, cut short or of another kind."""
    array = load_integers(path, 2)
    if array.dtype != np.dtype("<u8"):
        raise DamagedData(f"{shown_path(path)} does not hold uint64 rows; delete it and run the same command again.")
    return array


def load_integers(path: Path, dimensions: int) -> np.ndarray:
    """A mapped array of whole numbers; raises as load_uint64."""
    try:
        open_regular(path).close()
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UserError as error:
        raise DamagedData(one_line(f"{error} Delete it and run the same command again.")) from error
    except Exception as error:  # numpy reads the header as Python, and raises what its parser does
        raise DamagedData(
            f"{shown_path(path)} is not a sound array of numbers; delete it and run the same command again."
        ) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim != dimensions:
        raise DamagedData(f"{shown_path(path)} holds another kind of array; delete it and run the same command again.")
    return array
