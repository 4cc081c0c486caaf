"""Import DeepSpeed without parts that no run uses and that take seconds to import.

A run whose DeepSpeed or PyTorch differs imports the parts as usual; no code depends on their absence.
"""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def import_deepspeed() -> ModuleType:
    """Import DeepSpeed, but not MLflow for its autotuner, nor PyTorch's compiler for its own Muon.

    MLflow takes 1.3 s: the tracker imports it after the first step. The compiler takes 2.5 s: DeepSpeed compiles Muon's
    functions where it only asks whether an optimizer is its Muon, and never calls them here.
    """
    with _missing("mlflow"):
        import deepspeed.runtime.compiler

        compiler: Any = deepspeed.runtime.compiler
    decorator = compiler.compile
    compiler.compile = lambda: lambda function: function  # what it is where PyTorch has no compiler
    try:
        import deepspeed.runtime.zero.muon.muon_optimizer
    finally:
        compiler.compile = decorator
    return deepspeed


@contextlib.contextmanager
def _missing(name: str) -> Iterator[None]:
    """Meanwhile an import of a package fails, as where it is not installed."""
    if name in sys.modules:
        yield
        return
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]
