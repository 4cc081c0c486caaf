"""Command-line options for the keys of config section `cluster`."""

import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic.fields import FieldInfo

from data_prep.common.errors import UserError
from launchers.commands.arguments import with_options
from pretrain.config import ClusterConfig, ContainerConfig

_SPELLED = {
    "options": "--sbatch",
    "modules": "--module",
    "environment": "--env",
    "container_mounts": "--container-mount",
}
"""Options that may be repeated, with one value each time."""
_METAVARS = {"options": "--NAME[=VALUE]", "modules": "NAME", "environment": "NAME=VALUE", "setup": "LINES"}


def with_cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each key to a command. Its argument `options` maps the given keys to their values."""
    return with_options(command, "options", dict(_parameters()), _section)


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    for name, field in ClusterConfig.model_fields.items():
        if name != "container":
            yield name, field
    for name, field in ContainerConfig.model_fields.items():
        yield f"container_{name}", field


def _parameters() -> Iterator[tuple[str, inspect.Parameter]]:
    for name, field in _fields():
        kind, spelling = _kind(field.annotation), _SPELLED.get(name, f"--{name.replace('_', '-')}")
        if kind is bool:
            spelling += f"/--no-{name}"
        help_text = f"{field.description[:1].upper()}{field.description[1:]}." if field.description else None
        option = typer.Option(None, spelling, help=help_text, metavar=_METAVARS.get(name), show_default=False)
        yield name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)


def _kind(annotation: Any) -> Any:
    """The type that typer parses: number, flag, path, text, or a list of texts."""
    if typing.get_origin(annotation) in (list, dict):
        return list[str]
    for kind in (bool, int, Path):
        if annotation is kind or kind in typing.get_args(annotation):
            return kind
    return str


def _section(**values: Any) -> dict[str, Any]:
    """Config section `cluster` with the values of the given options."""
    given = {name: value for name, value in values.items() if value not in (None, [])}
    section = {name: value for name, value in given.items() if not name.startswith("container_")}
    if container := {name.removeprefix("container_"): given[name] for name in given if name.startswith("container_")}:
        section["container"] = container
    if "environment" in section:
        section["environment"] = dict(_assignment(text) for text in section["environment"])
    return section


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--env {text!r} must have the form NAME=VALUE.")
    return name, value
