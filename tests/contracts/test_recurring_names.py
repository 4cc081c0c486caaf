"""A public class, type alias or function has its name alone: one name means one thing in all packages.

A Triton kernel has the name of its plain twin, and a command's function the name of the command. So has a function of
the package `maskwright`, which is not in this list.
`python -m tests.contracts.test_recurring_names` lists names that recur, with their modules.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.support.forked import ROOT

PACKAGES = ("data_prep", "pretrain", "evaluation", "launchers")
NAMED_ON_PURPOSE = ("launchers/commands/", "pretrain/kernels/")


def named(module: ast.Module) -> Iterator[str]:
    """The public classes, functions and aliases of types that a module defines."""
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.istitle():
            yield node.targets[0].id


def recurring() -> dict[str, list[str]]:
    """The modules that define each name which several define."""
    modules = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            if not file.startswith(NAMED_ON_PURPOSE):
                for name in named(ast.parse(path.read_bytes())):
                    modules[name].append(file)
    public = (name for name in sorted(modules) if not name.startswith("_") and len(name) > 1 and name != "main")
    return {name: modules[name] for name in public if len(modules[name]) > 1}


def test_no_name_recurs():
    assert recurring() == {}


if __name__ == "__main__":
    for name, paths in recurring().items():
        print(name, *paths)
