"""Run a `maskwright` command as a user would type it, and print it first."""

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

from data_prep.common.errors import UserError
from data_prep.common.processes import module_command


def run_command(console: Console, *words: object, variables: Mapping[str, str] | None = None) -> None:
    """Print a command and run it in a separate process. Ctrl-C goes to the command.

    Args:
        words: of the command after `maskwright`. variables: changes of the environment.

    Raises:
        UserError: if the command fails.
    """
    arguments = list(map(str, words))
    console.print(f"[bold]$ maskwright {escape(shlex.join(arguments))}[/]", soft_wrap=True, highlight=False)
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C
    try:
        code = subprocess.Popen(
            module_command("launchers.cli", *arguments),
            env=os.environ | (variables or {}),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ).wait()
    finally:
        signal.signal(signal.SIGINT, previous)
    if code:
        raise UserError(
            f"`maskwright {arguments[0]}` failed with exit code {code}. See its message above. "
            "After you have solved the problem, run the same command again."
        )
