"""`maskwright demo`: all steps on a bundled text, with the same commands that a user types."""

import functools
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import configs
from launchers.arguments import Overrides, local
from launchers.local import run_command
from pretrain.config_files import load_config, override_words
from pretrain.run import RunFolder
from pretrain.tracking import sqlite_address

VOCAB_SIZE = 4096
PROCESSES = 2
SENTENCES = (
    "The little [MASK] sat down beside the fire.",
    '"I do not [MASK] what you mean," said Dorothy.',
    "They came to the gate of the Emerald [MASK].",
)


def demo(
    overrides: Overrides = None,
    folder: Annotated[
        Path, typer.Option("--dir", parser=local, metavar="DIR", help="folder for data/, runs/ and mlflow.db")
    ] = Path(),
) -> None:
    """Run all steps on a bundled text: shards, training, a Hugging Face model. Takes 2 to 4 minutes on two CPU cores.

    Examples:

        maskwright demo
        maskwright demo train.steps=100 --dir /tmp/demo
    """
    console = Console(highlight=False)
    data, run, tokenizer = folder / "data/demo", folder / "runs/demo", folder / "data/demo-tokenizer"
    source = Path(configs.__file__).parent
    text = source / "demo/books.jsonl.zst"
    load_config(source / "demo.yaml", overrides or [])  # report mistakes in the overrides now
    step = functools.partial(run_command, console, variables={"CUDA_VISIBLE_DEVICES": ""})  # the same everywhere
    console.rule("1. text to shards")
    if not tokenizer.exists():
        kind = ("--kind", "wordpiece", "--vocab-size", VOCAB_SIZE)
        step("tokenizer", "train", "--input", text, *kind, "--out", tokenizer)
    split = ("--tokenizer", tokenizer, "--out", data, "--valid-fraction", 0.05)
    step("prep", "run", "--input", text, *split)
    console.rule(f"2. training, {PROCESSES} processes on the CPU, 1 to 3 minutes")
    places = {"run.dir": run, "data.train": data / "train", "data.valid": data / "valid"}
    settings = places | {"track.uri": sqlite_address(folder / "mlflow.db")}
    step("train", source / "demo.yaml", *override_words(settings), *(overrides or []), "--procs", PROCESSES)
    console.rule("3. a Hugging Face model")
    model = RunFolder(run).export_of(RunFolder(run).read_status().step)
    if not model.exists():
        step("export", run)
    step("fill", model, *SENTENCES)
    console.rule("4. the result")
    step("report", run)
    _summary(folder, data, run, model, console)


def _summary(folder: Path, data: Path, run: Path, model: Path, console: Console) -> None:
    from data_prep.format import Dataset
    from data_prep.inspection import summary
    from pretrain.run import JournalTable
    from pretrain.tracking import run_page

    measured = JournalTable.read(RunFolder(run).journal)
    held_out = {name: measured.series(name).values[-1] for name in ("eval/loss", "eval/masked_accuracy")}
    baseline = summary(Dataset(data / "valid"))["unigram_entropy"]
    store = shlex.quote(sqlite_address(folder / "mlflow.db"))
    page = run_page(run) or f"mlflow ui --backend-store-uri {store}   then open http://127.0.0.1:5000"
    for name, value in (
        ("unigram entropy of the held-out text", f"{baseline:.4f} nats a token"),
        ("held-out loss", f"{held_out['eval/loss']:.4f} nats a masked token"),
        ("held-out masked accuracy", f"{held_out['eval/masked_accuracy']:.1%}"),
        ("all of the run on a page", RunFolder(run).report),
        ("model, for AutoModelForMaskedLM", model),
        ("MLflow", page),
    ):
        console.print(f"{name:<38}{escape(str(value))}", soft_wrap=True)
    console.print("\nNext: open the page in a browser, then train on your own text as docs/quickstart.md shows.")
