"""Entry point of the `maskwright` command. User errors are printed as one line."""

import logging
import os
import sys

from data_prep.common.errors import ON_WINDOWS


def main() -> None:
    """Run the command line.

    Exit code: 0 done, 1 failed, 2 invalid command line, 130 after Ctrl-C. Some commands, such as `train`, define more.
    """
    if sys.platform == "win32":
        sys.exit(f"error: {ON_WINDOWS}")
    if sys.getfilesystemencoding() == "ascii":  # as in the locale C: arguments and names of files are UTF-8
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONUTF8": "1"})
    try:
        if "--version" in sys.argv[1:]:  # after any command, as `--help`
            sys.argv[1:] = ["--version"]
        _main()
    except KeyboardInterrupt:  # also during the imports
        sys.exit(130)


def _main() -> None:
    # Imported here, because every worker process that a command spawns imports this module again.
    import typer

    from data_prep.common.errors import UserError, unforeseen
    from data_prep.common.output import guard_output
    from launchers.app import program
    from launchers.display import ShowHelp, UsageError, explain_usage_error
    from pretrain.distributed import Threads

    guard_output()
    # If accelerate is installed, transformers imports DeepSpeed, which warns on each machine without a GPU.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    os.environ.update(Threads.wait_settings())  # torch reads it when it is imported
    try:
        code = program(sys.argv[1:])(prog_name="maskwright", standalone_mode=False)
        sys.stdout.flush()  # here, where its error is reported
    except UserError as error:
        _fail(str(error), 1)
    except ShowHelp as error:  # a command group without a subcommand
        print(error, file=sys.stderr)
        sys.exit(2)
    except UsageError as error:
        _fail(explain_usage_error(error), 2)
    except OSError as error:
        if error.filename is None:  # not about a file of the user: a bug
            raise
        _fail(unforeseen(error), 1)
    except typer.Abort:
        sys.exit(130)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> None:
    from rich.console import Console
    from rich.markup import escape

    from data_prep.common.errors import printable
    from data_prep.common.urls import hide_secrets

    console = Console(stderr=True, soft_wrap=True, emoji=False, highlight=False)
    console.print(f"[bold red]error:[/] {escape(printable(hide_secrets(message)))}")
    sys.exit(code)


if __name__ == "__main__":
    main()
