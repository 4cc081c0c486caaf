"""A room imports the public names of other rooms (their `__init__.pyi`), not their inner modules.

`inner_imports.txt` lists the exceptions that are left. `python -m tests.contracts.test_room_imports` removes the lines
that are no longer needed.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.forked import ROOT

PACKAGES = ("data_prep", "pretrain", "evaluation", "launchers")
OPEN = ["data_prep", "common"]  # a room of modules that all import directly
EXCEPTIONS = Path(__file__).with_name("inner_imports.txt")  # lines: a file, and an inner module that it imports


def is_inner(module: str, importer: Path) -> bool:
    """Whether `module` is an inner module of another room that this room does not export."""
    parts = module.split(".")
    if (
        parts[0] not in PACKAGES
        or len(parts) != 3
        or parts[:2] == OPEN
        or not (ROOT / Path(*parts)).with_suffix(".py").is_file()
    ):
        return False
    room = ROOT / parts[0] / parts[1]
    exports = room / "__init__.pyi"
    exported = exports.is_file() and f"import {parts[2]} as" in exports.read_text(encoding="utf-8")
    return not exported and not importer.is_relative_to(room)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def inner_imports() -> set[str]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    pairs = ((path, module) for path in files for module in imported(path) if is_inner(module, path))
    return {f"{path.relative_to(ROOT).as_posix()} {module}" for path, module in pairs}


def exceptions() -> set[str]:
    return set(EXCEPTIONS.read_text(encoding="utf-8").splitlines())


def test_no_room_imports_inner_modules_of_another():
    assert sorted(inner_imports() - exceptions()) == [], "import these names from the room, or export them there"


def test_no_exception_is_left_over():
    stale = sorted(exceptions() - inner_imports())
    assert stale == [], "run python -m tests.contracts.test_room_imports"


if __name__ == "__main__":
    EXCEPTIONS.write_text("".join(f"{line}\n" for line in sorted(inner_imports() & exceptions())), encoding="utf-8")
