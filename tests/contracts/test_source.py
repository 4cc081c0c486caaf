"""Rules of the source: one name means one thing, rooms import from rooms, and one class names the files of a run.

A room exports at most 20 names, and other rooms import those and not its inner modules. The exports are in
`__init__.pyi` where the room imports them when they are used, else in `__init__.py`.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pretrain.run import RunFolder
from tests.support.forked import ROOT

PACKAGES = ("data_prep", "pretrain", "evaluation", "launchers", "maskwright")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
# A Triton kernel has the name of its plain twin; a command's function and one of maskwright, the name of the command.
NAMED_ON_PURPOSE = ("launchers/commands/", "pretrain/kernels/", "maskwright/")
OPEN = ["data_prep", "common"]  # a room of modules that all import directly
MOST_EXPORTS = 20
# Names of files that other folders have too: of a data set, a model, a study, or a key of the report.
AMBIGUOUS = {"config.yaml", "report.html", "tokenizer", "system", "profile", "slurm", "checkpoints", "exports"}
# The class that spells them, and one below it, which recognizes folders of all kinds for error messages.
SPELL_FILES = {"pretrain/run/folder.py", "data_prep/storage/folder_kinds.py"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def defined(path: Path) -> Iterator[str]:
    """The classes, functions and aliases of types that a module defines."""
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.istitle():
            yield node.targets[0].id


def recurring() -> dict[str, list[str]]:
    """The modules that define each public name which several define."""
    modules = defaultdict(list)
    for path in FILES:
        if not name_of(path).startswith(NAMED_ON_PURPOSE):
            for name in defined(path):
                modules[name].append(name_of(path))
    public = (name for name in sorted(modules) if not name.startswith("_") and len(name) > 1 and name != "main")
    return {name: modules[name] for name in public if len(modules[name]) > 1}


def test_no_name_recurs():
    assert recurring() == {}


def is_inner(module: str, importer: Path) -> bool:
    """Whether `module` is an inner module of another room that this room does not export."""
    parts = module.split(".")
    if parts[0] not in PACKAGES or len(parts) != 3 or parts[:2] == OPEN:
        return False
    room = ROOT / parts[0] / parts[1]
    is_module = (room / parts[2]).with_suffix(".py").is_file()
    return is_module and parts[2] not in exports(room) and not importer.is_relative_to(room)


@cache
def exports(room: Path) -> list[str]:
    """The names that a room gives to others."""
    stub = room / "__init__.pyi"
    tree = parsed(stub if stub.is_file() else room / "__init__.py")
    return [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def test_no_room_imports_inner_modules_of_another():
    inner = {f"{name_of(path)} {module}" for path in FILES for module in imported(path) if is_inner(module, path)}
    assert sorted(inner) == [], "import these names from the room, or export them there"


def test_no_room_exports_too_many_names():
    rooms = [path.parent for package in PACKAGES for path in (ROOT / package).glob("*/__init__.py")]
    assert {name_of(room): len(exports(room)) for room in rooms if len(exports(room)) > MOST_EXPORTS} == {}


def test_no_other_module_spells_the_file_names_of_a_run_folder():
    run = Path("RUN")
    names = {value.name for value in vars(RunFolder(run)).values() if isinstance(value, Path) and value != run}
    assert {"journal.jsonl", "status.json", "STOP", "mlflow_run.json", "supervisor.json"} <= names
    nodes = (node for path in FILES if name_of(path) not in SPELL_FILES for node in ast.walk(parsed(path)))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    assert [text for text in texts if Path(text).name in names - AMBIGUOUS] == []
