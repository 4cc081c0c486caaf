"""The command line in this process: quick, for commands that start no training."""

import contextlib
import signal
import sys
from collections.abc import Iterator
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
    with pytest.MonkeyPatch.context() as patch, _signal_handlers_kept():
        patch.setattr(sys, "argv", ["maskwright", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return Ended(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the handlers of the signals that stop a training: the command sets its own, this process lives on."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
