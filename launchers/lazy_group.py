"""Command groups that import the module of a command when the command is used, so that the program starts fast."""

import ast
import copy
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from launchers.command_help import CommandHelp, GroupHelp, keep_blocks, name_values

_MODULES = Path(__file__).parent / "commands"


class _Commands(MutableMapping[str, Any]):
    """The commands of a group, by name. `make` gets a name and makes the command when it is first read."""

    def __init__(self, names: list[str], make: Callable[[str], Any]) -> None:
        self._commands: dict[str, Any] = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> Any:
        if self._commands[name] is None:
            self._commands[name] = self._make(name)
        return self._commands[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __contains__(self, name: object) -> bool:  # without making it
        return name in self._commands

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def lazy_group(names: list[str], group: str = "") -> type[TyperGroup]:
    """Make a group class for typer with these commands. A list of them shows docstrings and imports no command.

    Args:
        names: names of commands in the group, such as "run"; the groups that typer adds come after them.
        group: name of the group, such as "prep". Its command "run" is then the function `prep_run` of
            launchers/commands/prep_run.py.
    """

    def function(name: str) -> str:
        return f"{group} {name}".strip().replace(" ", "_")

    def load(name: str) -> Any:
        module = import_module(f"launchers.commands.{function(name)}")
        return _command(name, getattr(module, function(name)))

    class LazyGroup(GroupHelp):
        def __init__(self, **settings: Any) -> None:
            groups = settings.pop("commands", None) or {}
            super().__init__(**settings)
            self.help = keep_blocks(self.help or "")
            self.commands = _Commands(names, load)
            self.commands.update(groups)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            shown = copy.copy(self)  # with commands that only have a docstring
            shown.commands = _Commands(names, lambda name: _command(name, _docstring(function(name))))
            shown.commands.update({name: self.commands[name] for name in self.commands if name not in names})
            GroupHelp.format_help(shown, ctx, formatter)

    return LazyGroup


def _command(name: str, function: Callable[..., None]) -> Any:
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    name_values(function)
    one.command(name, cls=CommandHelp, help=keep_blocks(inspect.getdoc(function) or ""))(function)
    return typer.main.get_command(one)


def _docstring(name: str) -> Callable[[], None]:
    """A function with the docstring of the command function `name`, read from its file."""

    def empty() -> None: ...

    tree = ast.parse((_MODULES / f"{name}.py").read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    empty.__doc__ = ast.get_docstring(found)
    return empty
