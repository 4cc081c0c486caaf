"""Import circles: no two modules import each other, also not in functions or for types."""

import ast
from graphlib import CycleError, TopologicalSorter

from tests.support.forked import ROOT

PACKAGES = ("data_prep", "pretrain", "evaluation", "launchers")


def module_files():
    """The path of each module of the source, by its full name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported_modules(text, names):
    """The modules among `names` that a module's text imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & names or {node.module}
    return found & names


def test_no_module_imports_itself_through_others():
    files = module_files()
    graph = {name: imported_modules(path.read_text(), files.keys()) - {name} for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"modules import each other: {' -> '.join(reversed(error.args[1]))}") from None


def test_the_check_sees_imports_inside_functions_and_for_types():
    text = "if TYPE_CHECKING:\n    from a.b import c\ndef f():\n    import a.d\n    from a import e\n"
    assert imported_modules(text, {"a", "a.b", "a.d", "a.e"}) == {"a.b", "a.d", "a.e"}
