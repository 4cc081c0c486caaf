"""Messages for invalid command lines: the error, with an example or the help command."""

import importlib
import re
from typing import Any

import typer

_exceptions = importlib.import_module(typer.BadParameter.__module__)  # typer has click's, or a copy of them
UsageError: type[Exception] = _exceptions.UsageError
ShowHelp: type[Exception] = _exceptions.NoArgsIsHelpError


def explain_usage_error(error: Any) -> str:
    """Build the message for one of typer's usage errors."""
    problems = error.__cause__.errors() if hasattr(error.__cause__, "errors") else []
    if problems:  # a value that pydantic refuses
        from pretrain.config_files import value_refusal

        return value_refusal(_name(error.param), problems[0])
    message = " ".join(error.format_message().split())  # without line breaks and tabs between choices
    return f"{message if message.endswith('?') else message.rstrip('.') + '.'} {_advice(error)}"


def examples(command: Any) -> list[str]:
    """The example command lines in a command's help."""
    text = re.sub(r"\\\n +", "", command.help or "")  # joins lines that end with a backslash
    return re.findall(r"^ +(maskwright .*)$", text, re.MULTILINE)


def _name(parameter: Any) -> str:
    """Name of a parameter on the command line, such as --vocab-size, or in the help, such as CONFIG."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return str(parameter.metavar or parameter.name).removesuffix("...").strip("[]")


def _advice(error: Any) -> str:
    if isinstance(error, _exceptions.NoSuchOption) and "." in error.option_name:
        return f"Write keys of the config without dashes: {error.option_name.lstrip('-')}=VALUE."
    if isinstance(error, _exceptions.NoSuchOption) and error.option_name[1:].isdecimal():
        return f"{error.option_name} is read as an option: numbers begin at 0."
    if isinstance(error, _exceptions.NoSuchOption) and error.option_name.startswith("--resume"):
        return "Write run.resume=FOLDER for a checkpoint, or checkpoint.remote=URL for a run's copies on other storage."
    if isinstance(error, _exceptions.NoSuchOption) and error.option_name == "--config":
        command = error.ctx.command_path.split(maxsplit=1)[-1]
        return f"Write the config file without an option: maskwright {command} run.yaml."
    if isinstance(error, _exceptions.MissingParameter) and (lines := examples(error.ctx.command)):
        return f"Example: {min(lines, key=len)}"
    words = error.ctx.command_path.split() if error.ctx else []
    return f"See {' '.join(['maskwright', *(word for word in words if word != 'maskwright')])} --help."
