"""Run `maskwright` commands as child processes: one with its output here, or several with their output in logs."""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from data_prep.common.errors import UserError
from data_prep.common.processes import die_with_parent, module_command, uninterrupted
from launchers.local.stop_signals import on_stop_signals

_POLL_SECONDS = 1.0


def run_command(console: Console, *words: object, variables: Mapping[str, str] | None = None) -> None:
    """Print a command and run it in a separate process. Ctrl-C goes to the command.

    Args:
        words: of the command after `maskwright`. variables: changes of the environment.

    Raises:
        UserError: if the command fails.
    """
    arguments = list(map(str, words))
    console.print(f"[bold]$ maskwright {escape(shlex.join(arguments))}[/]", soft_wrap=True, highlight=False)
    with uninterrupted():  # the command gets Ctrl-C, too
        command = module_command("launchers.cli", *arguments)
        code = subprocess.run(command, env=os.environ | (variables or {})).returncode
    if code:
        raise UserError(
            f"`maskwright {arguments[0]}` failed with exit code {code}. See its message above. "
            "After you have solved the problem, run the same command again."
        )


def start_command(words: Sequence[str], program: Sequence[str] = (), **streams: Any) -> "subprocess.Popen[bytes]":
    """Start `maskwright WORDS`, or another program. It ends with this process, and gets Ctrl-C only from it.

    streams: of Popen, such as stdout and env.
    """
    return subprocess.Popen(
        [*(program or module_command("launchers.cli")), *words],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        **streams,
    )


@contextmanager
def child_commands(program: Sequence[str] = ()) -> Iterator[Callable[..., int]]:
    """Yield a function that runs commands as child processes, one at a time, with their output in a log file.

    A stop request goes to the running command. After it, the function raises Stopped and starts no more commands.
    """
    from evaluation.study import Stopped

    child: subprocess.Popen[bytes] | None = None
    requests: list[int] = []

    def stop(number: int) -> None:
        if not requests and child and child.poll() is None:
            child.terminate()
        requests.append(number)

    def run(words: Sequence[str], log: Path, poll: Callable[[], None] = lambda: None) -> int:
        nonlocal child
        if requests:
            raise Stopped
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            child = start_command(words, program, stdout=output, stderr=output)
            if requests:  # the request arrived before the process started
                child.terminate()
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = child.wait(_POLL_SECONDS)
                    break
                poll()
        if requests:
            raise Stopped
        return code

    with on_stop_signals(stop):
        yield run
