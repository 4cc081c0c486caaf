"""A process for Triton's interpreter or compiler.

Triton decides when it is imported whether kernels are interpreted. So they run in a process that has not imported it
yet, and no other test notices. This module imports neither Triton nor torch by itself.
tests/pretrain/conftest.py has the fixture `interpreter`.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which there is for Linux alone")


@contextmanager
def triton_process(interpret: bool) -> Iterator[ProcessPoolExecutor]:
    """A process that runs functions with Triton, interpreted or not."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_start, initargs=(interpret,)) as pool:
        yield pool


def _start(interpret: bool) -> None:
    assert "triton" not in sys.modules
    os.environ["TRITON_INTERPRET"] = str(int(interpret))
    if version("triton").startswith("3.6."):
        _make_indices_of_arrays()


def _make_indices_of_arrays() -> None:
    """Let the interpreter of Triton 3.6 run with numpy 2.4.

    This Triton calls int() on an array with the shape (1,) if a kernel uses a scalar as an index, such as in `range`.
    numpy 2.4 refuses that; Triton 3.7 squeezes the array first. Kernels on a GPU do not use this code.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


def compiled_for(backend: str, architecture: int | str, lanes: int):
    """See tests.support.compiled_kernels: what was compiled, and all functions of Triton in the source."""
    from tests.support.compiled_kernels import compiled_kernels, kernels_in_source

    return compiled_kernels(backend, architecture, lanes), *kernels_in_source()


def graph_compared(arch: str, checkpointing: bool):
    """See tests.support.kernel_graphs.compare."""
    from tests.support.kernel_graphs import compare

    return compare(arch, checkpointing)
