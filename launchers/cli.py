"""The `maskwright` command: turns a UserError into one sentence."""

import sys


def main() -> None:
    """Run the command line; exit 1 with one sentence on bad input, 130 on Ctrl-C."""
    # Imported here, since each worker process that a command spawns imports this module anew.
    from data_prep.errors import UserError
    from launchers.app import app

    try:
        app()
    except UserError as error:
        from rich.console import Console
        from rich.markup import escape

        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
