"""One sentence for a command line that cannot be parsed: what is wrong with it, and what to write instead."""

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from pretrain.config.wording import nearest, shown, value_refusal

_exceptions = importlib.import_module(typer.BadParameter.__module__)  # typer has click's, or a copy of them
UsageError: type[Exception] = _exceptions.UsageError
ShowHelp: type[Exception] = _exceptions.NoArgsIsHelpError


def explain(error: Any) -> str:
    """The sentence for one of typer's usage errors."""
    if isinstance(error, _exceptions.NoSuchOption):
        return _unknown_option(error)
    if isinstance(error, _exceptions.MissingParameter):
        return _missing(error)
    if isinstance(error, _exceptions.BadParameter):
        return _bad_value(error)
    if isinstance(error, _exceptions.BadOptionUsage):
        return _bad_usage(error)
    return _unexpected(error)


def examples(command: Any) -> list[str]:
    """The command lines that a command's help gives as examples."""
    _, _, text = (command.help or "").partition("Example")
    lines = re.sub(r"`([^`]*)`", r"\n\1\n", text).splitlines()
    return [line.strip() for line in lines if line.strip().startswith("maskwright ")]


def _path(error: Any) -> str:
    """The command as one types it, such as `maskwright prep run`."""
    words = error.ctx.command_path.split() if error.ctx else []
    return " ".join(["maskwright", *(word for word in words if word != "maskwright")])


def _help(error: Any) -> str:
    return f"See {_path(error)} --help."


def _name(parameter: Any) -> str:
    """A parameter as one types it: --vocab-size, or the CONFIG of the help."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return str(parameter.metavar or parameter.name).removesuffix("...").strip("[]")


def _unknown_option(error: Any) -> str:
    name = error.option_name
    said = f"Unknown option {shown(name)} of {_path(error)}."
    if "." in name:
        return f"{said} Write keys of the config without dashes: {name.lstrip('-')}=VALUE."
    words = {parameter.name: parameter for parameter in _parameters(error) if parameter.param_type_name == "argument"}
    if name.lstrip("-") in words:
        return f"{said} Write {_name(words[name.lstrip('-')])} without a name before it."
    known = [
        option
        for parameter in _parameters(error)
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option[0] == "-"
    ]
    likely = None if len(name) < 4 else next((option for option in known if option.startswith(name)), None)
    likely = likely or nearest(name, known, 0.65)
    return f"{said} Did you mean {likely}?" if likely else f"{said} {_help(error)}"


def _missing(error: Any) -> str:
    parameter, example = error.param, examples(error.ctx.command)[:1]
    said = f"{_path(error)} needs {_name(parameter)}."
    return f"{said} Example: {example[0]}" if example and len(example[0]) < 200 else f"{said} {_help(error)}"


def _bad_value(error: Any) -> str:
    name = _name(error.param)
    problem = _problem(error)
    return value_refusal(name, problem) if problem else f"{name}: {error.message}. {_help(error)}"


def _problem(error: Any) -> Mapping[str, Any] | None:
    """What pydantic says of the value; a wrong choice, which typer tells in words, as pydantic would say it."""
    cause = error.__cause__
    if not hasattr(cause, "errors"):
        return None
    problem: Mapping[str, Any] = cause.errors()[0]
    if choices := re.search(r"is not one of (.+?)\.?$", problem["msg"]):
        *others, last = choices[1].split(", ")
        expected = f"{', '.join(others)} or {last}" if others else last
        return {"type": "literal_error", "input": problem["input"], "ctx": {"expected": expected}}
    return problem


def _bad_usage(error: Any) -> str:
    if "does not take" in error.message:
        return f"{error.option_name} takes no value: leave out what follows the = sign."
    return f"{error.option_name} needs a value: {error.option_name} VALUE."


def _unexpected(error: Any) -> str:
    """An unknown command, or an argument too many."""
    commands = getattr(error.ctx.command, "commands", {}) if error.ctx else {}
    words = re.search(r"command '([^']*)'|arguments?(?:\(s\))? \((.*)\)$", error.message)
    word = (words[1] or words[2] or "") if words else ""
    if not commands:
        return (
            f"Unexpected argument {shown(word)} of {_path(error)}. Put quotes around text with spaces. {_help(error)}"
        )
    paths = dict(_commands(error.ctx.find_root().command))
    said = f"Unknown command {shown(word)}."
    if word in paths:  # as in `maskwright run`, which is `maskwright prep run`, or `maskwright prep train`
        return f"{said} Did you mean {' or '.join(paths[word])}?"
    likely = nearest(word, list(commands))
    return f"{said} Did you mean {_path(error)} {likely}?" if likely else f"{said} {_help(error)}"


def _commands(command: Any) -> Iterator[tuple[str, list[str]]]:
    """(name, the ways to call a command of that name), over all commands."""
    found: dict[str, list[str]] = {}
    waiting = [("maskwright", command)]
    while waiting:
        path, group = waiting.pop()
        for name, inner in group.commands.items():
            found.setdefault(name, []).append(f"{path} {name}")
            if hasattr(inner, "commands"):
                waiting.append((f"{path} {name}", inner))
    return iter(found.items())


def _parameters(error: Any) -> list[Any]:
    return error.ctx.command.get_params(error.ctx) if error.ctx else []
