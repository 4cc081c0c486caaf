"""A room exports at most 20 names, and other rooms import those and not its inner modules.

The exports are in `__init__.pyi` where the room imports them when they are used, else in `__init__.py`.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.forked import ROOT

PACKAGES = ("data_prep", "pretrain", "evaluation", "launchers", "maskwright")
OPEN = ["data_prep", "common"]  # a room of modules that all import directly
MOST_EXPORTS = 20


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
    return parts[2] not in exports(room) and not importer.is_relative_to(room)


@cache
def exports(room: Path) -> list[str]:
    """The names that a room gives to others."""
    stub = room / "__init__.pyi"
    tree = ast.parse((stub if stub.is_file() else room / "__init__.py").read_bytes())
    return [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]


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


def test_no_room_imports_inner_modules_of_another():
    assert sorted(inner_imports()) == [], "import these names from the room, or export them there"


def test_no_room_exports_too_many_names():
    rooms = [path.parent for package in PACKAGES for path in (ROOT / package).glob("*/__init__.py")]
    too_many = {room.relative_to(ROOT).as_posix(): len(exports(room)) for room in rooms}
    assert {room: count for room, count in too_many.items() if count > MOST_EXPORTS} == {}
