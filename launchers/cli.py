"""The `maskwright` command: assembles the groups of commands and turns a UserError into one sentence."""

import sys

import typer
from rich.console import Console
from rich.markup import escape

from data_prep.errors import UserError
from launchers.commands import dataset, demo, launch, launch_prep, prep, run, tokenizer, track

app = typer.Typer(
    name="maskwright",
    help="Pretrain masked-language-model encoders, from raw text to a Hugging Face model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(tokenizer.tokenizer_app, name="tokenizer")
for finished in (dataset.info, dataset.show, dataset.verify):
    prep.prep_app.command()(finished)
app.add_typer(prep.prep_app, name="prep")
for command in (demo.demo, run.train, run.status, run.stop, run.export):
    app.command()(command)
app.add_typer(track.track_app, name="track")
launch.launch_app.command()(launch_prep.prep)
app.add_typer(launch.launch_app, name="launch")


def main() -> None:
    """Run the command line; exit 1 with one sentence on bad input, 130 on Ctrl-C."""
    try:
        app()
    except UserError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
