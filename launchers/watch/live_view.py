"""A table of runs that is drawn again every two seconds, until a key or Ctrl-C ends it."""

import contextlib
import select
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

from rich.live import Live

from launchers.display import text_console
from launchers.watch.run_table import PIPE_WIDTH, live_table, look_at_all

_SECONDS = 2.0


def watch_runs(runs: list[Path]) -> None:
    """Show the progress of runs, those that begin later too, until q is pressed. Without a terminal, show it once."""
    console = text_console(PIPE_WIDTH)
    if not console.is_terminal:
        console.print(live_table(look_at_all(runs)))
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        _keys(),
        Live(live_table(look_at_all(runs)), console=console, screen=True) as live,
    ):
        while not _is_over():
            live.update(live_table(look_at_all(runs)))


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Let a key be read when it is pressed, without Enter."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _is_over() -> bool:
    """Wait, and return whether q was pressed."""
    keys = [sys.stdin] if sys.stdin.isatty() else []
    ready, _, _ = select.select(keys, [], [], _SECONDS)
    return bool(ready) and sys.stdin.read(1) in ("q", "Q", "")
