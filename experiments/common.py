"""Shared by the experiments: options, commands of this checkout, text data, and figures of runs.

Each experiment is a script that runs maskwright's commands in --work, uses results there again, and writes a page.
With --quick it shows in seconds that it works: models are tiny, and the figures mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, existing, run, table, warn_if_busy, write_page
from benchmarks.harness import options as page_options
from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from data_prep.storage import decompressed_chunks
from pretrain.run import JournalReader

__all__ = ["ROOT", "run", "table", "write_page"]

OUT_OF_TIME = 124


def options(doc: str | None, name: str, work: str = "small") -> argparse.ArgumentParser:
    """A parser with --out, --work, --procs and --quick. work: default folder in runs/."""
    parser = page_options(doc, name, "experiments")
    parser.add_argument("--work", type=Path, default=Path("runs") / work, help="folder of data, runs and models")
    parser.add_argument("--procs", type=int, default=1, help="processes of one thread")
    parser.add_argument("--quick", action="store_true", help="tiny models, only to see that the script works")
    return parser


def parsed(parser: argparse.ArgumentParser, *files: str, **quick: Any) -> argparse.Namespace:
    """The arguments, with absolute paths, because commands run in --work; the folder is created.

    With --quick and without --out, the page is in --work, not among the results.

    Args:
        files: names of arguments that are paths of existing files.
        quick: values of arguments with --quick.

    Raises UserError if a file does not exist.
    """
    args = parser.parse_args()
    for name, value in quick.items() if args.quick else ():
        setattr(args, name, value)
    for name in files:
        value = getattr(args, name)
        setattr(args, name, [existing(path) for path in value] if isinstance(value, list) else existing(value))
    if args.quick and args.out == parser.get_default("out"):
        args.out = args.work / args.out.name
    args.work, args.out = args.work.absolute(), args.out.absolute()
    args.work.mkdir(parents=True, exist_ok=True)
    warn_if_busy()
    return args


def keep_settings(args: argparse.Namespace, *names: str) -> argparse.Namespace:
    """The arguments. Some are recorded in settings.json in --work; raises UserError if its results are of others."""
    file, values = args.work / "settings.json", {name: getattr(args, name) for name in names}
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if changed := [f"{name} {known[name]}" for name in names if known.get(name, values[name]) != values[name]]:
        raise UserError(f"{args.work} has results of {', '.join(changed)}. Name another --work.")
    write_json(file, known | values)
    return args


def maskwright(
    args: argparse.Namespace,
    *words: Any,
    module: str = "launchers.cli",
    seconds: float | None = None,
    also: Sequence[int] = (),
    folder: Path | None = None,
) -> int:
    """Run a command, or another module of this checkout, one thread per process; show its output.

    Args:
        folder: to run it in; by default --work.
        seconds: end it after so long, with the exit code OUT_OF_TIME.
        also: exit codes besides 0 that are no error.

    Returns:
        The exit code.
    """
    command = [str(word) for word in (module, *words)]
    print(*command, flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(args.work / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    code = run_module(command, environment, folder or args.work, seconds)
    if code and code not in also:
        raise UserError(f"{module} {words[0]} ended with exit code {code}; run the command again to resume")
    return code


def run_module(command: list[str], environment: dict[str, str], folder: Path, seconds: float | None = None) -> int:
    """Exit code of `python -m COMMAND`; OUT_OF_TIME if it was killed after `seconds`."""
    words = [sys.executable, "-m", *command]
    try:
        return subprocess.run(words, cwd=folder, env=environment, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME


def train(args: argparse.Namespace, config: str | Path, name: str, *changes: str) -> None:
    """Train runs/NAME of a config, and export models/NAME, unless that exists."""
    if not (args.work / "models" / name).exists():
        maskwright(args, "train", config, *changes, "--procs", args.procs)
        maskwright(args, "export", f"runs/{name}", "--out", f"models/{name}")


def make_tokenizer(args: argparse.Namespace, *source: Any) -> None:
    """Train `tokenizer` in --work with --vocab-size on a source (options of the command), unless it exists."""
    if not (args.work / "tokenizer").exists():
        maskwright(args, "tokenizer", "train", *source, "--vocab-size", args.vocab_size, "--out", "tokenizer")


def prepare(
    args: argparse.Namespace, valid_fraction: float, *source: Any, out: str = "data", tokenizer: Any = "tokenizer"
) -> None:
    """Prepare OUT/train and OUT/valid in --work, unless they exist.

    Args:
        source: options of `prep run`; none: the text of --input. A tokenizer is then trained on it first.
    """
    if not source:
        source = ("--input", args.input)
        make_tokenizer(args, *source)
    if not (args.work / out / "valid/manifest.json").exists():
        words = ("--tokenizer", tokenizer, "--valid-fraction", valid_fraction, "--out", out)
        maskwright(args, "prep", "run", *source, *words)


def read_text_lines(path: Path) -> list[str]:
    """The lines of a file, which may be compressed."""
    with path.open("rb") as file:
        return b"".join(decompressed_chunks(file, path.name)).decode().splitlines()


def held_out_losses(run: Path) -> dict[int, float]:
    """Held-out losses of a run in nats, by step."""
    entries = JournalReader(run / "journal.jsonl").entries()
    return {entry.step: entry.metrics["eval/loss"] for entry in entries if "eval/loss" in entry.metrics}


def step_seconds(run: Path) -> list[float]:
    """Seconds of each step of a run."""
    return [entry.metrics.get("speed/step_seconds", 0.0) for entry in JournalReader(run / "journal.jsonl").entries()]


def run_minutes(run: Path) -> float:
    """Minutes of a run's steps."""
    return sum(step_seconds(run)) / 60
