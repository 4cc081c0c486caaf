"""The help of commands: examples that stay as written, short names of values, and lists of commands."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of a click context. The help is as wide as the terminal, at most 100 columns."""

_VALUES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def keep_blocks(text: str) -> str:
    r"""Mark the indented paragraphs of a help text with \b, so that click does not join their lines."""
    return "\n\n".join(f"\b\n{part}" if part.startswith(" ") else part for part in text.split("\n\n"))


def name_values(function: Callable[..., Any]) -> None:
    """Give each option of a command function a short name for its value: N, X, TEXT, PATH, or its choices as A|B."""
    for parameter in inspect.signature(function).parameters.values():
        kind, option = parameter.annotation, parameter.default
        if get_origin(kind) is Annotated:
            kind, option = get_args(kind)
        if isinstance(option, OptionInfo) and option.metavar is None:
            option.metavar = _value_name(kind)


class CommandHelp(TyperCommand):
    """A command whose help lists arguments by their names, without types such as <list[Path]>."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            records = [one.get_help_record(ctx) for one in self.get_params(ctx) if one.param_type_name == kind]
            rows = [(re.sub(r" <[^>]*>$", "", record[0]), record[1]) for record in records if record]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class GroupHelp(TyperGroup):
    """A group whose help shows the whole first sentence of each command's help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands."""
        rows = [(name, first_sentence(one.help or "")) for name, one in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def first_sentence(text: str) -> str:
    """The first sentence of a docstring."""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


def _value_name(kind: Any) -> str | None:
    """The name for a value of a type such as `int`, `list[str] | None` or a Literal; None for a flag."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "|".join(inner)
    if origin in (Union, UnionType, list):
        (kind,) = (one for one in inner if one is not NoneType)
        return _value_name(kind)
    return _VALUES.get(kind)
