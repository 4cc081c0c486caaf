"""Small models of books for the experiments, which differ in one setting and share a --work folder."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import options
from data_prep.format import Dataset
from experiments import sst2_finetuning
from experiments.books import maskwright, prepare
from pretrain.run import JournalReader

SEQ_LEN = 128
CONFIG: dict[str, Any] = {
    "data": {"train": "data/train", "valid": "data/valid", "seq_len": SEQ_LEN},
    "masking": {"rate": {"schedule": "linear", "start": 0.3, "end": 0.15}},
    "model": {"arch": "modernbert", "size": {"layers": 4, "hidden": 192, "heads": 3, "intermediate": 288}},
    "optim": {"name": "muon", "lr": 2e-3, "betas": [0.9, 0.98], "weight_decay": 0.01},
    "schedule": {"kind": "wsd", "warmup_steps": 50, "decay_fraction": 0.4},
    "train": {"steps": 1000, "global_batch_size": 16, "micro_batch_size": 16, "precision": "bf16"},
    "checkpoint": {"every_steps": 200, "keep": 1},
    "eval": {"every_steps": 200, "rows": 256},
    "track": {"uri": "none"},
}
NATURAL = "natural"  # the masked model of text in its order


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", required=True, type=Path, help="a file of text, or a quoted glob")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--procs", type=int, default=1, help="processes of one thread")
    parser.add_argument("--work", type=Path, default=Path("runs/small"), help="folder of data, runs and models")


def task_options(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Options of a page with BLiMP and SST-2; see `parsed`."""
    parser = options(doc, name, "experiments")
    add_options(parser)
    parser.add_argument("--pairs", required=True, type=Path, help="BLiMP as jsonl")
    parser.add_argument("--pairs-limit", type=int, default=50, help="pairs of each of its sets")
    sst2_finetuning.add_options(parser)
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of `task_options`."""
    args = parser.parse_args()
    absolute(args, "pairs", "train", "valid")
    return args


def evaluate_pairs(args: argparse.Namespace, names: Iterable[str]) -> None:
    """Measure BLiMP of models/NAME, and of a unigram model, for evaluation.json in --work, unless it exists."""
    if not (args.work / "evaluation.json").exists():
        models = [f"models/{name}" for name in names]
        pairs = ["--pairs", str(args.pairs), "--limit", str(args.pairs_limit), "--baseline", "unigram"]
        maskwright(args, "evaluate", *models, *pairs, "--counts", "data/train", "--json", "evaluation.json")


def absolute(args: argparse.Namespace, *names: str) -> None:
    """Make paths absolute, because commands run in --work."""
    for name in ("input", "work", *names):
        setattr(args, name, getattr(args, name).absolute())


def train_all(args: argparse.Namespace, changes: dict[str, dict[str, Any]]) -> None:
    """Prepare the data, then train and export models/NAME in --work for each name, unless it exists.

    changes: see config_of.
    """
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args, valid_fraction="0.03")
    for name, own in changes.items():
        if not (args.work / "models" / name).exists():
            file = args.work / f"{name}.yaml"
            file.write_text(yaml.safe_dump(config_of(name, own)))
            maskwright(args, "train", file.name, "--procs", str(args.procs))
            maskwright(args, "export", f"runs/{name}", "--out", f"models/{name}")


def config_of(name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Config of a run. own: sections that replace sections of CONFIG; None leaves a section out."""
    sections = {"run": {"dir": f"runs/{name}", "seed": 0}} | CONFIG | own
    return {section: values for section, values in sections.items() if values is not None}


def about(args: argparse.Namespace, names: list[str]) -> str:
    """Description of the models, for a page."""
    size, steps = CONFIG["model"]["size"], CONFIG["train"]
    tokens = Dataset(args.work / "data/train").manifest.totals.tokens
    minutes = [run_minutes(args.work / "runs" / name) for name in names]
    shortest, longest = (f"{of(minutes):.0f}" for of in (min, max))
    took = shortest if shortest == longest else f"{shortest} to {longest}"
    return f"""ModernBERTs of {size["layers"]} layers x {size["hidden"]}, trained from one seed on {tokens / 1e6:.2f} M
tokens of text: {steps["steps"]:,} steps of {steps["global_batch_size"]} rows of {SEQ_LEN} tokens,
{took} minutes each in bf16 on one core that other work shared. There is one training run
each, so the results describe these models."""


def run_minutes(run: Path) -> float:
    """Minutes of a run's steps."""
    return sum(step_seconds(run)) / 60


def step_seconds(run: Path) -> list[float]:
    """Seconds of each step of a run."""
    journal = JournalReader(run / "journal.jsonl").entries()
    return [entry.metrics.get("speed/step_seconds", 0.0) for entry in journal]
