"""The `maskwright` command. It reports a user's mistake in one line."""

import os
import sys


def main() -> None:
    """Run the command line.

    Exit code: 0 done, 1 failed, 2 for a command line that cannot be parsed, 130 after Ctrl-C; `train` and others have
    more.
    """
    try:
        _main()
    except KeyboardInterrupt:  # also during the imports
        sys.exit(130)


def _main() -> None:
    # Imported here, since each worker process that a command spawns imports this module anew.
    import typer

    from data_prep.errors import UserError, unforeseen
    from launchers.app import app
    from launchers.display import usage_errors
    from pretrain.distributed.threads import waiting

    os.environ.update(waiting())  # before torch is imported, which reads it
    try:
        code = app(prog_name="maskwright", standalone_mode=False)
    except UserError as error:
        _fail(str(error), 1)
    except usage_errors.ShowHelp as error:  # a group of commands without a command
        print(error, file=sys.stderr)
        sys.exit(2)
    except usage_errors.UsageError as error:
        _fail(usage_errors.explain(error), 2)
    except OSError as error:
        if error.filename is None:  # no file of the user: an error of the program
            raise
        _fail(unforeseen(error), 1)
    except typer.Abort:
        sys.exit(130)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> None:
    from rich.console import Console
    from rich.markup import escape

    from data_prep.tokenizer import printable

    console = Console(stderr=True, soft_wrap=True, emoji=False, highlight=False)
    console.print(f"[bold red]error:[/] {escape(printable(message))}")
    sys.exit(code)


if __name__ == "__main__":
    main()
