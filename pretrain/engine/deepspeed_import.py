"""Import DeepSpeed without parts that no run uses and that take seconds to import.

A run whose DeepSpeed or PyTorch differs imports the parts as usual; no code depends on their absence.
"""

import sys
from types import ModuleType
from typing import Any


def import_deepspeed() -> ModuleType:
    """Import DeepSpeed, but not MLflow for its autotuner, nor PyTorch's compiler for its own Muon.

    MLflow takes 1.3 s: the tracker imports it after the first step. The compiler takes 2.5 s: DeepSpeed compiles Muon's
    functions where it only asks whether an optimizer is its Muon, and never calls them here.
    """
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    hidden = modules.setdefault("mlflow", None) is None  # its import fails, as where it is not installed
    try:
        import deepspeed.runtime.compiler
    finally:
        if hidden:
            del modules["mlflow"]
    compiler: Any = deepspeed.runtime.compiler
    decorator = compiler.compile
    compiler.compile = lambda: lambda function: function  # what it is where PyTorch has no compiler
    try:
        import deepspeed.runtime.zero.muon.muon_optimizer
    finally:
        compiler.compile = decorator
    return deepspeed
