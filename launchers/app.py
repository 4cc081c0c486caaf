"""All commands of `maskwright`. Command `prep info` is the function `prep_info` in launchers/commands/prep_info.py."""

from typing import Annotated

import typer

from launchers.lazy_group import lazy_group

COMMANDS = (
    *(
        "demo",
        "init",
        "doctor",
        "plan",
        "train",
        "branch",
        "stop",
        "status",
        "watch",
        "logs",
        "report",
        "checkpoints",
        "replay",
        "audit",
    ),
    *("config show", "config diff", "config schema", "runs tree"),
    *("export", "merge", "publish", "evaluate", "finetune", "fill", "generate", "tokenizer train"),
    *("prep run", "prep plan", "prep scan", "prep resolve", "prep task", "prep merge"),
    *("prep info", "prep show", "prep verify", "prep collocations", "prep weights"),
    *("mask show", "analyze layers", "study masking", "study run", "study time", "study report"),
    *("track sync", "track models", "track register", "track export"),
    *("launch slurm", "launch prep", "launch list", "launch hosts"),
)
"""Names, in the order of the help."""

_HELP = """Pretrain masked-language-model encoders, from raw text to a Hugging Face model.

Start with `maskwright demo`. It runs all steps on a small bundled text. docs/quickstart.md explains each step. Then
`maskwright init TEXT` writes a config for your own text and machine.

The usual order of commands:

    maskwright tokenizer train --input 'text/*.txt' --out data/tokenizer

    maskwright prep run --input 'text/*.txt' --tokenizer data/tokenizer --out data/books --valid-fraction 0.01

    maskwright doctor configs/bert-mini.yaml

    maskwright train configs/bert-mini.yaml

    maskwright status runs/bert-mini

    maskwright export runs/bert-mini

`maskwright COMMAND -h` shows the options and examples of a command.
"""

_GROUPS = {  # what the commands of a group do, and an example
    "tokenizer": ("Train a tokenizer.", "train --input 'text/*.txt' --vocab-size 30522 --out data/tokenizer"),
    "prep": (
        "Turn raw text into verified, pre-tokenized shards.",
        "run --input 'text/*.txt' --tokenizer data/tokenizer --out data/books --valid-fraction 0.01",
    ),
    "config": ("Show configs, and a schema of all keys for editors.", "show configs/bert-mini.yaml"),
    "runs": ("Compare the runs of a folder.", "tree runs"),
    "mask": (
        "Show how a masking strategy masks a text.",
        'show "The old ship left the harbour." --tokenizer data/tokenizer',
    ),
    "analyze": ("Analyze trained models.", "layers runs/books --data data/books/valid --out layers"),
    "study": (
        "Compare masking strategies on your own data, with several seeds.",
        "masking configs/bert-mini.yaml --dry-run",
    ),
    "track": ("Send metrics and models of a run to MLflow.", "sync runs/demo"),
    "launch": (
        "Submit a run to a cluster.",
        "slurm configs/bert-base.yaml --nodes 4 --gpus-per-node 8 --time 24:00:00",
    ),
}


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"maskwright {version('maskwright')}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Global options. The commands do the work."""


def _assemble() -> typer.Typer:
    program = typer.Typer(
        name="maskwright",
        cls=lazy_group([name for name in COMMANDS if " " not in name]),
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    program.callback()(_main)
    for group, (purpose, example) in _GROUPS.items():
        names = [name.removeprefix(f"{group} ") for name in COMMANDS if name.startswith(f"{group} ")]
        text = f"{purpose}\n\nExample:\n\n    maskwright {group} {example}\n"
        program.add_typer(typer.Typer(cls=lazy_group(names, group), help=text, no_args_is_help=True), name=group)
    return program


app = _assemble()
