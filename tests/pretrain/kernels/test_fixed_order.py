"""The Triton kernels add in a fixed order, so that two runs give the same bits.

Atomic additions happen in the order in which programs run, and rounding makes that order visible. Autotuning chooses
tiles by time, and tiles decide in which order a program adds.
"""

import ast
import re
from collections.abc import Iterator

from tests.support.forked import ROOT

PACKAGES = ("data_prep", "pretrain", "evaluation", "launchers")
VARIABLE = r"\b(atomic_|autotune|inline_asm)"  # assembly may hide an atomic operation


def kernels() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of the packages with a decorator of Triton, and where they are."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for one in ast.walk(ast.parse(path.read_text())):
                if isinstance(one, ast.FunctionDef) and any("triton" in ast.unparse(d) for d in one.decorator_list):
                    yield f"{path.relative_to(ROOT)}: {one.name}", one


def test_kernels_use_no_atomic_operation_and_no_autotuning():
    found = dict(kernels())
    assert len(found) >= 10
    for place, kernel in found.items():
        assert not re.search(VARIABLE, ast.unparse(kernel)), place
