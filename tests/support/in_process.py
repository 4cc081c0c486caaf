"""The command line in this process: fast, for commands that start no training."""

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result
from typer.testing import CliRunner

from launchers.app import program
from launchers.cli import main

app = program()


def invoke(*words: object, code: int = 0, **environment: str) -> Result:
    """The result of `maskwright WORDS`, which ends with this exit code; raises the error of a command."""
    result = CliRunner().invoke(app, list(map(str, words)), env=environment)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def command(*words: object, cwd: Path | None = None) -> Ended:
    """Run `maskwright WORDS` to its end, in the folder `cwd`."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["maskwright", *map(str, words)])
        if cwd:
            patch.chdir(cwd)
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
    said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Ended(code if isinstance(code, int) else int(code is not None), *said)


def complaints(errors: str) -> list[str]:
    """The lines of standard error, without the progress of the start."""
    return [line for line in errors.splitlines() if not re.match(r"Starting .*\.$| *\d+\.\d s  |attention ", line)]


def refused(*words: object, cwd: Path | None = None) -> str:
    """The one-line error of a command for bad input."""
    ended = command(*words, cwd=cwd)
    assert ended.code == 1, ended
    assert "Traceback" not in ended.err
    (line,) = complaints(ended.err)
    assert line.startswith("error: ")
    return line
