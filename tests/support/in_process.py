"""The command line in this process: fast, for commands that start no training."""

import contextlib
import io
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from launchers.app import program
from launchers.cli import main

app = program()


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def command(*words: str | Path, cwd: Path | None = None) -> Ended:
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
