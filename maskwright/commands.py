"""Run commands as functions: keyword values become options, and the output appears here."""

import functools
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

import typer

from data_prep.common.errors import UserError
from data_prep.common.processes import uninterrupted
from launchers.app import program
from launchers.local import start_command
from pretrain.reporting import LINE_SECONDS_VARIABLE
from pretrain.run import EXIT_CODES

PathLike = str | os.PathLike[str]
"""A path, a `Run` or a `DataSet`; of a data set also a URL."""
Function = TypeVar("Function", bound=Callable[..., Any])

_COLOUR = re.compile(r"\x1b\[[\d;]*m")  # where FORCE_COLOR is set, as in a notebook
_PROGRESS = re.compile(r"step [\d,]+/(?!.*\| eval )|\s*\d+% ")
_root: Any = typer.main.get_command(program())


def with_options(command: str, *left_out: str) -> Callable[[Function], Function]:
    """Show the options of a command, without those `left_out`, in the signature and the docstring of a function."""

    def describe(function: Function) -> Function:
        shown, only = dict(inspect.signature(function).parameters), inspect.Parameter.KEYWORD_ONLY
        shown.pop("options", None)
        lines = [inspect.getdoc(function) or "", "", "Args:"]
        for name, option in _parameters(command).items():
            if name not in left_out:
                shown.setdefault(name, inspect.Parameter(name, only, default=option.default))
                lines.append(f"    {name}: {option.help}")
        function.__doc__ = "\n".join(lines)
        function.__signature__ = inspect.Signature([*shown.values()])  # type: ignore[attr-defined]
        return function

    return describe


def run_command_here(command: str, captured: bool = False, **values: Any) -> str:
    """Run a command, such as "prep run", and print what it prints. Ctrl-C goes to the command.

    Args:
        captured: return what it prints on standard output, and print only the rest.
        values: of its parameters.

    Raises:
        UserError: it failed.
        KeyboardInterrupt: it was interrupted, and exited.
    """
    problem, seconds = "", {LINE_SECONDS_VARIABLE: "1"} if _in_notebook() else {}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as results:
        child = start_command(
            [*command.split(), *command_line(command, values)],
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | seconds,
            stdout=results if captured else subprocess.PIPE,
            stderr=subprocess.PIPE if captured else subprocess.STDOUT,
        )
        forward = functools.partial(child.send_signal, signal.SIGINT)
        with uninterrupted(forward), child, output_lines(f"maskwright {command} ...") as show:
            for line in child.stderr or child.stdout or ():
                show(text := line.decode(errors="replace").rstrip("\n"))
                if (plain := _COLOUR.sub("", text)).startswith("error: "):
                    problem = plain.removeprefix("error: ")
        if child.returncode not in (EXIT_CODES["completed"], EXIT_CODES["stopped"]):
            raise UserError(problem or f"maskwright {command} failed with exit code {child.returncode}; see its output")
        results.seek(0)
        return results.read()


def command_line(command: str, values: Mapping[str, Any]) -> list[str]:
    """Values of parameters as words of a command line."""
    options, arguments, parameters = [], [], _parameters(command)
    if unknown := values.keys() - parameters:
        near = get_close_matches(name := min(unknown), parameters, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if "overrides" in parameters and not near:
            hint = '; give keys of the config as a dictionary, such as {"train.steps": 20}'
        raise TypeError(f"maskwright {command} has no option {name!r}{hint}")
    for name, parameter in parameters.items():
        given = values.get(name)
        given = [value for value in (given if isinstance(given, list | tuple) else [given]) if value is not None]
        if name in values and parameter.required and not given:
            raise UserError(f"{name} is empty. Give at least one.")
        for value in given:
            text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
            if parameter.param_type_name == "argument":
                arguments.append(text)
            elif parameter.is_flag:
                options += (parameter.opts if value else parameter.secondary_opts)[:1]
            else:
                options.append(f"{parameter.opts[0]}={text}")
    return [*options, "--", *arguments]


def _parameters(command: str) -> dict[str, Any]:
    """The parameters of a command, by name, as typer describes them."""
    described = functools.reduce(lambda group, word: group.commands[word], command.split(), _root)
    return {parameter.name: parameter for parameter in described.params}


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this; a script may have imported its package."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def output_lines(waiting: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line of a command.

    In a notebook, a line of progress replaces the one before it, and `waiting` is shown until the first one.
    """
    if not _in_notebook():
        yield print
        return
    from IPython.display import display

    cell: Any = display({"text/plain": waiting}, raw=True, display_id=True)
    last = ""

    def show(line: str) -> None:
        nonlocal last
        if _PROGRESS.match(line):
            last = line
            cell.update({"text/plain": line}, raw=True)
        else:
            print(line, flush=True)

    try:
        yield show
    finally:
        cell.update({"text/plain": last if last.startswith("step ") else ""}, raw=True)
