"""All commands of `maskwright`. Command `prep info` is the function `prep_info` in launchers/commands/prep_info.py."""

import inspect
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

COMMANDS = (
    *("demo", "init", "doctor", "plan"),
    *("train", "branch", "stop", "status", "report", "checkpoints", "replay", "audit", "config show"),
    *("export", "merge", "publish", "evaluate", "finetune", "fill", "generate", "tokenizer train"),
    *("prep run", "prep task", "prep merge", "prep info", "prep show", "prep verify", "prep weights"),
    *("mask show", "study sweep", "study run"),
    *("track sync", "track models", "track export"),
    *("launch slurm", "launch prep"),
)
"""Names, in the order of the help."""

_HELP = """Pretrain masked-language-model encoders, from raw text to a Hugging Face model.

Start with the demo, and then with your own text. docs/quickstart.md explains each step.

    maskwright demo                  # all steps on a small bundled text
    maskwright init TEXT             # a config, a tokenizer and a data set for your own text
    maskwright train my-model.yaml   # train; the same command resumes
    maskwright status runs/my-model
    maskwright export runs/my-model  # a Hugging Face model

`maskwright COMMAND -h` shows the options of a command, and examples that work after the demo.
"""

_GROUPS = {  # what the commands of a group do, and an example
    "tokenizer": (
        "Train a tokenizer.",
        "train --input configs/demo/books.jsonl.zst --vocab-size 4096 --out data/tokenizer",
    ),
    "prep": (
        "Turn raw text into verified, pre-tokenized shards.",
        "run --input configs/demo/books.jsonl.zst --tokenizer data/demo-tokenizer --out data/books",
    ),
    "config": ("Show configs, and a schema of all keys for editors.", "show configs/demo.yaml"),
    "mask": (
        "Show how a masking strategy masks a text.",
        'show "The old ship left the harbour." --tokenizer data/demo-tokenizer',
    ),
    "study": (
        "Compare values of any keys of the config, with several seeds.",
        "sweep configs/demo.yaml run.dir=runs/study --over optim.lr=1e-3,4e-3 --dry-run",
    ),
    "track": ("Send metrics and models of a run to MLflow.", "sync runs/demo"),
    "launch": (
        "Submit a run to a cluster.",
        "slurm configs/demo.yaml run.dir=runs/two-nodes --nodes 2 --cpu --dry-run",
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


def program(words: Sequence[str] = ()) -> typer.Typer:
    """The program with the command that `words` begin with; with all commands if they begin with none.

    The imports of all commands take longer than many commands.
    """
    named = [name for name in COMMANDS if [*words[: name.count(" ") + 1]] == name.split()]
    top = typer.Typer(
        name="maskwright",
        help=_keep_blocks(_HELP),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    top.callback()(_main)
    groups = {"": top}
    for group, (purpose, example) in _GROUPS.items():
        text = _keep_blocks(f"{purpose}\n\nExample:\n\n    maskwright {group} {example}\n")
        groups[group] = typer.Typer(help=text, short_help=purpose, no_args_is_help=True, rich_markup_mode=None)
        top.add_typer(groups[group], name=group)
    for command in named or COMMANDS:
        name = command.replace(" ", "_")
        function = getattr(import_module(f"launchers.commands.{name}"), name)  # imports no slow package
        text, (group, _, word) = inspect.getdoc(function) or "", command.rpartition(" ")
        first = re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]
        groups[group].command(word, help=_keep_blocks(text), short_help=first)(function)
    return top


def _keep_blocks(text: str) -> str:
    r"""Mark the indented paragraphs of a help text with \b, so that click does not join their lines."""
    return "\n\n".join(f"\b\n{part}" if part.startswith(" ") else part for part in text.split("\n\n"))
