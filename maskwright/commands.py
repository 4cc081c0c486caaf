"""Run commands as functions: keyword values become options, and the output appears here."""

import functools
import inspect
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any, TypeVar

import typer
from pydantic_core import to_jsonable_python

from data_prep.common.errors import UserError
from data_prep.common.processes import die_with_parent, module_command
from launchers.app import app
from maskwright.notebook import in_notebook, output_lines
from pretrain.config_files import on_one_line
from pretrain.reporting import LINE_SECONDS_VARIABLE
from pretrain.run import EXIT_CODES

PathLike = str | os.PathLike[str]
"""A path, a `Run` or a `DataSet`; of a data set also a URL."""
Function = TypeVar("Function", bound=Callable[..., Any])

_COLOUR = re.compile(r"\x1b\[[\d;]*m")  # where FORCE_COLOR is set, as in a notebook
_root: Any = typer.main.get_command(app)


def with_options(command: str, *left_out: str) -> Callable[[Function], Function]:
    """Show the options of a command in the signature and the docstring of a function that takes `**options`.

    Args:
        left_out: parameters of the command that the function does not take.
    """

    def describe(function: Function) -> Function:
        own = {name: value for name, value in inspect.signature(function).parameters.items() if name != "options"}
        options = {name: option for name, option in _parameters(command).items() if name not in left_out}
        shown = own | {
            name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default)
            for name, option in options.items()
            if name not in own
        }
        lines = [f"    {name}: {options[name].help}" for name in shown if name in options]
        function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *lines])
        function.__signature__ = inspect.Signature([*shown.values()])  # type: ignore[attr-defined]
        return function

    return describe


def run_command_here(command: str, captured: bool = False, **values: Any) -> str:
    """Run a command, and print what it prints. Ctrl-C goes to the command.

    Args:
        command: its words, such as "prep run". values: of its parameters.
        captured: return what it prints on standard output, and print only the rest.

    Raises:
        UserError: it failed.
        KeyboardInterrupt: it was interrupted, and exited.
    """
    problems: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as results:
        child = subprocess.Popen(
            module_command("launchers.cli", *command.split(), *command_line(command, values)),
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | ({LINE_SECONDS_VARIABLE: "1"} if in_notebook() else {}),
            stdin=subprocess.DEVNULL,
            stdout=results if captured else subprocess.PIPE,
            stderr=subprocess.PIPE if captured else subprocess.STDOUT,
            start_new_session=True,  # so that only this process forwards Ctrl-C, once
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        with _forward_interrupts(child) as interrupts, child, output_lines(f"maskwright {command} ...") as show:
            for line in child.stderr or child.stdout or ():
                text = line.decode(errors="replace").rstrip("\n")
                if (plain := _COLOUR.sub("", text)).startswith("error: "):
                    problems.append(plain.removeprefix("error: "))
                else:
                    show(text)
        results.seek(0)
        output = results.read()
    failed = child.returncode not in (EXIT_CODES["completed"], EXIT_CODES["stopped"])
    for problem in problems[:-1] if failed and not interrupts else problems:
        print(f"error: {problem}")
    if interrupts:
        raise KeyboardInterrupt(f"maskwright {command} was interrupted")
    if failed:
        exited = f"maskwright {command} failed with exit code {child.returncode}. See its output."
        raise UserError(problems[-1] if problems else exited)
    return output


def override_words(overrides: Mapping[str, Any] | None) -> list[str]:
    """Values of a config, by key, as the `section.key=value` of a command line.

    A dictionary for a section changes only the keys that it names.
    """

    def plain(value: Any) -> Any:  # of a number of numpy, or a path
        return value.item() if hasattr(value, "item") else os.fspath(value)

    if not isinstance(overrides, Mapping | None):
        raise UserError(f'overrides must be a dictionary, such as {{"train.steps": 20}}, not {overrides!r:.60}')
    values = to_jsonable_python(dict(overrides or {}), fallback=plain)
    keys: dict[str, Any] = {}
    for key, value in values.items():
        whole = "." in key or not isinstance(value, dict)
        keys |= {key: value} if whole else {f"{key}.{name}": inner for name, inner in value.items()}
    return [f"{key}={on_one_line(value)}" for key, value in keys.items()]


def _parameters(command: str) -> dict[str, Any]:
    """The parameters of a command, by name, as typer describes them."""
    described = functools.reduce(lambda group, word: group.commands[word], command.split(), _root)
    return {parameter.name: parameter for parameter in described.params}


def command_line(command: str, values: Mapping[str, Any]) -> list[str]:
    """Values of parameters as words of a command line."""
    options, arguments, parameters = [], [], _parameters(command)
    if unknown := values.keys() - parameters:
        near = get_close_matches(name := min(unknown), parameters, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"maskwright {command} has no option {name!r}{hint}")
    for name, parameter in parameters.items():
        given = values.get(name)
        for value in given if isinstance(given, list | tuple) else [given]:
            text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
            if value is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(text)
            elif parameter.is_flag:
                options += (parameter.opts if value else parameter.secondary_opts)[:1]
            else:
                options.append(f"{parameter.opts[0]}={text}")
    return [*options, "--", *arguments]


@contextmanager
def _forward_interrupts(child: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """Send each Ctrl-C to a process and its workers, as a terminal does. Yields a list of the signals."""
    interrupts: list[int] = []

    def forward(number: int, _: object) -> None:
        interrupts.append(number)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)

    if threading.current_thread() is not threading.main_thread():  # which alone receives signals
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, forward)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
