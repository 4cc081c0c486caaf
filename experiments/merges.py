"""Merges: held-out loss after a decay of the learning rate, and after a merge of checkpoints, at equal tokens.

    python -m experiments.merges --input books.jsonl.zst

For each seed, one run has a constant learning rate until the last steps. From its checkpoint, one run continues with
this rate ("stable"), and another with a rate that falls to 0 ("decay"). Checkpoints of these last steps are merged with
`maskwright merge`. All models have the same masks of held-out text. The page has the figures; a JSON file next to it
has the values of each seed. Run the same command again to resume: results in --work are used again.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_prep.common.files import write_json
from data_prep.format import Dataset
from evaluation.study.paired_statistics import BySeed, paired_differences
from experiments import small_models
from experiments.common import keep_settings, maskwright, prepare, run, run_minutes, table, write_page
from experiments.small_models import CONFIG, SEQ_LEN, VALID_FRACTION, options, parsed

TRUNK, STABLE, DECAY = "trunk", "stable", "decay"
WARMUP = 50  # steps
MASKING = {"rate": 0.3}
MERGES = {  # (weights, share of the last steps)
    "uniform, all": ("uniform", 1.0),
    "uniform, second half": ("uniform", 0.5),
    "linear-decay, all": ("linear-decay", 1.0),
}


def main() -> None:
    args = arguments()
    prepare(args, VALID_FRACTION)
    if not train_missing(args):
        print("more trainings are to be done: run the same command again")
        return
    report(args, {seed: losses(args, seed) for seed in seeds_of(args)})


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "merges")
    parser.add_argument("--steps", type=int, default=800, help="of each model")
    parser.add_argument("--last-steps", type=int, default=200, help="with a falling rate, or with merged checkpoints")
    parser.add_argument("--every", type=int, default=20, help="steps between the merged checkpoints")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1000, help="of held-out text")
    parser.add_argument("--trainings", type=int, help="stop after so many new trainings (default: do all)")
    args = parsed(parser, steps=8, last_steps=4, every=2, seeds=1, rows=8)
    return keep_settings(args, "steps", "last_steps", "every", "rows")


def seeds_of(args: argparse.Namespace) -> range:
    return range(1, args.seeds + 1)


def train_missing(args: argparse.Namespace) -> bool:
    """Train at most --trainings missing models, and measure complete seeds. Returns whether all are trained."""
    every = [(part, seed) for seed in seeds_of(args) for part in (TRUNK, STABLE, DECAY)]
    missing = [one for one in every if not (args.work / "models" / "{}-{}".format(*one)).exists()]
    now = missing[: args.trainings]
    for part, seed in now:
        train(args, part, seed)
        if part == DECAY:
            losses(args, seed)
    return len(now) == len(missing)


def train(args: argparse.Namespace, part: str, seed: int) -> None:
    """Train and export one model. Both continuations start with a copy of the trunk's run folder."""
    name, runs = f"{part}-{seed}", args.work / "runs"
    if part != TRUNK and not (runs / name).exists():
        shutil.rmtree(runs / f"{name}.tmp", ignore_errors=True)
        shutil.copytree(runs / f"{TRUNK}-{seed}", runs / f"{name}.tmp")
        (runs / f"{name}.tmp").rename(runs / name)
    small_models.train(args, name, changes(args, part, seed))


def changes(args: argparse.Namespace, part: str, seed: int) -> dict[str, Any]:
    """Sections of the config of one training. The decay changes the schedule of its run, which needs allow_changes."""
    name, warmup = f"{part}-{seed}", min(WARMUP, args.steps // 4)
    falls = {"kind": "wsd", "warmup_steps": warmup, "decay_fraction": args.last_steps / args.steps}
    keeps = {"every_steps": args.every, "keep": 1} | ({} if part == TRUNK else {"keep_every": args.every})
    return {
        "run": {"dir": f"runs/{name}", "seed": seed, "allow_changes": part == DECAY},
        "masking": MASKING,
        "schedule": falls if part == DECAY else {"kind": "constant", "warmup_steps": warmup},
        "train": CONFIG["train"] | {"steps": args.steps - (args.last_steps if part == TRUNK else 0)},
        "checkpoint": keeps,
    }


def losses(args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Held-out loss of each model of a seed, by its name on the page. Merges that are missing are made."""
    models = {part: f"models/{part}-{seed}" for part in (DECAY, STABLE)}
    for part in (STABLE, DECAY):
        for merge in MERGES:
            models[f"{part}, merged ({merge})"] = merged(args, part, seed, merge)
    file = args.work / f"evaluation-{seed}.json"
    if not file.exists():
        text = ["--data", "data/valid", "--rows", args.rows, "--seq-len", str(SEQ_LEN)]
        maskwright(args, "evaluate", *models.values(), *text, "--json", file.name)
    found = json.loads(file.read_text(encoding="utf-8"))["models"]
    return {name: found[model]["held_out"]["loss"] for name, model in models.items()}


def merged(args: argparse.Namespace, part: str, seed: int, merge: str) -> str:
    """Make a merge unless it exists, and return its folder."""
    weights, share = MERGES[merge]
    out = f"models/{part}-{seed}-{weights}-{share:g}"
    if not (args.work / out).exists():
        first = args.steps - round(share * args.last_steps)
        checkpoints = f"runs/{part}-{seed}@{first}..{args.steps}"
        maskwright(args, "merge", checkpoints, "--weights", weights, "--data", "none", "--out", out)
    return out


def report(args: argparse.Namespace, by_seed: Mapping[int, dict[str, float]]) -> None:
    names = list(next(iter(by_seed.values())))
    values: dict[str, BySeed] = {name: {seed: found[name] for seed, found in by_seed.items()} for name in names}
    write_page(args.out, page(args, values), ("torch", "deepspeed", "transformers"))
    write_json(args.out.with_suffix(".json"), {"held_out_loss": values})


def page(args: argparse.Namespace, values: Mapping[str, BySeed]) -> str:
    size, batch = CONFIG["model"]["size"], CONFIG["train"]["global_batch_size"]
    tokens = Dataset(args.work / "data/train").manifest.totals.tokens
    minutes = [
        run_minutes(args.work / "runs" / f"{part}-{seed}") for part in (STABLE, DECAY) for seed in seeds_of(args)
    ]
    first, count = args.steps - args.last_steps, args.last_steps // args.every + 1
    later = args.last_steps // 2 // args.every + 1
    return f"""# Decay of the learning rate, and merges of checkpoints

ModernBERTs of {size["layers"]} layers x {size["hidden"]} with {args.vocab_size:,} ids, trained on books
({tokens / 1e6:.1f} M tokens) in {CONFIG["train"]["precision"]} with {args.seeds} seeds of weights and data order.
Each model has trained {args.steps:,} steps of {batch} rows of {SEQ_LEN} tokens
({args.steps * batch * SEQ_LEN / 1e6:.2f} M tokens), {MASKING["rate"]:.0%} of them predicted.
This took {min(minutes):.1f} to {max(minutes):.1f} minutes of steps in one thread.

- Until step {first:,}, the learning rate is {CONFIG["optim"]["lr"]:g} (Muon) after {WARMUP} steps of warm-up.
  Both continuations begin there, with the same state, and get the same batches and masks.
- **stable**: the rate stays the same until step {args.steps:,}.
- **decay**: the rate falls linearly to 0 over the last {args.last_steps} steps.
- **merged**: the mean of checkpoints of one continuation, every {args.every} steps. "All" are the {count} from step
  {first:,} to {args.steps:,}; "second half" are the {later} from step {args.steps - args.last_steps // 2:,} on.
  Weights are equal (uniform), or as `maskwright merge --weights linear-decay` sets them.

Held-out loss is the mean of -log p in nats over the same {args.rows:,} rows with the same masks (15% of the tokens).
Differences are paired by seed. Intervals are Student's t at the level of Holm's procedure over all differences of a
table; p is Student's, without and with Holm's adjustment.

The figures are for this small model, one learning rate and one number of last steps. Decays of another shape or length
were not tried.

{means(values)}

## Minus the decay

{compared(values, [(name, DECAY) for name in values if name != DECAY])}

## Minus the stable model

{compared(values, [(name, STABLE) for name in values if name.startswith(f"{STABLE},")])}

Values of each seed: [{args.out.stem}.json]({args.out.stem}.json).
"""


def means(values: Mapping[str, BySeed]) -> str:
    rows = []
    for name, of_seeds in values.items():
        losses = [*of_seeds.values()]
        deviation = f"{np.std(losses, ddof=1):.4f}" if len(losses) > 1 else ""
        rows.append([name, f"{np.mean(losses):.4f}", deviation, ", ".join(f"{loss:.4f}" for loss in losses)])
    return table(["model", "held-out loss", "standard deviation", "of each seed"], *rows)


def compared(values: Mapping[str, BySeed], pairs: list[tuple[str, str]]) -> str:
    """A table of differences, each the first of a pair minus the second."""
    rows = []
    for names, one in zip(
        pairs, paired_differences([(values[name], values[other]) for name, other in pairs]), strict=True
    ):
        numbers = [f"{one.mean:+.4f}", f"{one.sd or 0:.4f}"]
        test = ["", "", "", "fewer than three pretrainings"]
        if one.interval:
            verdict = "significant" if one.significant else "not significant"
            test = ["{:+.4f} to {:+.4f}".format(*one.interval), f"{one.p:.2g}", f"{one.p_adjusted:.2g}", verdict]
        rows.append([*names, *numbers, *test])
    return table(["model", "minus", "difference", "standard deviation", "interval", "p", "p (Holm)", ""], *rows, left=2)


if __name__ == "__main__":
    run(main)
