"""The command line in this process: fast, for commands that start no training."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from launchers.cli import main


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def command(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Ended:
    """Run `maskwright WORDS` to its end; what `capsys` has seen until then is dropped."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["maskwright", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return Ended(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())
