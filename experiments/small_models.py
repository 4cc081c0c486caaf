"""Small models of books for the experiments, which differ in one setting and share a --work folder."""

import argparse
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from experiments import common, sst2_finetuning
from experiments.common import maskwright, prepare, run_minutes

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
QUICK: dict[str, dict[str, Any]] = {  # what --quick changes in CONFIG
    "model": {"size": {"layers": 2, "hidden": 16, "heads": 2, "intermediate": 16}},
    "schedule": {"warmup_steps": 1},
    "train": {"steps": 4, "global_batch_size": 4, "micro_batch_size": 4, "precision": "fp32"},
    "checkpoint": {"every_steps": 2},
    "eval": {"every_steps": 2, "rows": 4},
}
VALID_FRACTION = 0.03
NATURAL = "natural"  # the masked model of text in its order


def options(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Options of a page about models of a text; see `parsed`."""
    parser = common.options(doc, name)
    parser.add_argument("--input", required=True, type=Path, help="a file of text, or a quoted glob")
    parser.add_argument("--vocab-size", type=int, default=8192)
    return parser


def task_options(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Options of a page with BLiMP and SST-2; see `parsed_with_tasks`."""
    parser = options(doc, name)
    parser.add_argument("--pairs", required=True, type=Path, help="BLiMP as jsonl")
    parser.add_argument("--pairs-limit", type=int, default=50, help="pairs of each of its sets")
    sst2_finetuning.add_options(parser)
    return parser


def parsed(parser: argparse.ArgumentParser, *files: str, **quick: Any) -> argparse.Namespace:
    """`common.parsed`. With --quick, CONFIG describes tiny models."""
    args = common.keep_settings(common.parsed(parser, *files, **{"vocab_size": 300} | quick), "vocab_size", "quick")
    if "input" in args:  # a file, or a glob
        args.input = args.input.absolute()
    if args.quick:
        for section, values in QUICK.items():
            CONFIG[section] |= values
    return args


def parsed_with_tasks(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """The arguments of `task_options`."""
    args = parsed(parser, "pairs", "train", "valid", pairs_limit=4, **sst2_finetuning.QUICK | quick)
    return sst2_finetuning.keep_search(common.keep_settings(args, "pairs_limit"))


def evaluate_pairs(args: argparse.Namespace, names: Iterable[str]) -> None:
    """Measure BLiMP of models/NAME, and of a unigram model, for evaluation.json in --work, unless it has them alone."""
    models, file = [f"models/{name}" for name in names], args.work / "evaluation.json"
    if not file.exists() or [*json.loads(file.read_text(encoding="utf-8"))["models"]] != [*models, "unigram"]:
        pairs = ["--pairs", args.pairs, "--limit", args.pairs_limit]
        maskwright(args, "evaluate", *models, *pairs, "--unigram", "data/train", "--json", "evaluation.json")


def train_all(args: argparse.Namespace, changes: dict[str, dict[str, Any]]) -> None:
    """Prepare the data, then train and export models/NAME in --work for each name, unless it exists.

    changes: see config_of.
    """
    prepare(args, VALID_FRACTION)
    for name, own in changes.items():
        train(args, name, own)


def train(args: argparse.Namespace, name: str, own: dict[str, Any]) -> None:
    """Train runs/NAME and export models/NAME, unless it exists. own: see config_of."""
    common.train(args, write_config(args, name, own).name, name)


def write_config(args: argparse.Namespace, name: str, own: dict[str, Any]) -> Path:
    """Write NAME.yaml in --work. own: see config_of."""
    path: Path = args.work / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config_of(name, own)))
    return path


def sweep(args: argparse.Namespace, name: str, own: dict[str, Any], *over: str) -> dict[str, Any]:
    """Run the study runs/NAME with --seeds, and return its report.json. own: see config_of. over: keys and values.

    Raises UserError if the held-out loss of a run is not finite: a report leaves it out.
    """
    file = write_config(args, name, own).name
    keys = [word for text in over for word in ("--over", text)]
    maskwright(args, "study", "sweep", file, *keys, "--seeds", args.seeds, "--procs", args.procs)
    report: dict[str, Any] = json.loads((args.work / "runs" / name / "report.json").read_text(encoding="utf-8"))
    losses = report["values"].get("held_out", {})
    for arm, seed in itertools.product(report["arms"], range(1, args.seeds + 1)):
        if str(seed) not in losses.get(arm, {}):
            run = args.work / f"runs/{name}/runs/{arm}/seed-{seed}"
            raise UserError(f"{run}: the held-out loss is not finite. Take lower learning rates, and another --work.")
    return report


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
