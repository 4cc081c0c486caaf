"""Objectives: BLiMP, held-out likelihood and SST-2 of one model trained by each, at equal tokens and at equal time.

    python -m experiments.objectives --input books.jsonl.zst --pairs blimp.jsonl.zst
        --train sst2-train.tsv --valid sst2-dev.tsv

Masked and causal models, mixtures of masked next-token prediction with causal language modelling (GPT-BERT: Charpentier
and Samuel, 2024, arXiv:2410.24159), and masked diffusion, with several seeds of weights and data order. It runs
maskwright's commands. Run the same command again to resume: results in --work are used again.
"""

import argparse
import json
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from data_prep.common.files import write_json
from data_prep.format import Dataset
from evaluation.likelihood.held_out_loss import HeldOut, Masks
from evaluation.likelihood.predictors import open_model
from evaluation.study.paired_statistics import BySeed, mean_of, paired_differences
from experiments import sst2_finetuning
from experiments.common import maskwright, prepare, run, step_seconds, table, write_page
from experiments.small_models import CONFIG, SEQ_LEN, VALID_FRACTION, config_of, parsed_with_tasks, task_options
from experiments.sst2_finetuning import fine_tune
from experiments.text_likelihood import row_likelihoods

MASKED = "masked"
ROWS, DRAWS = 300, 4  # of the likelihood: held-out rows, and masks of each row
RECIPES: dict[str, dict[str, Any]] = {
    MASKED: {},
    "causal": {"objective": "clm", "masking": None},
    **{
        f"masked and causal {masked}:{causal}": {
            "objective": [
                {"kind": "mntp", "share": masked / (masked + causal)},
                {"kind": "clm", "share": causal / (masked + causal)},
            ],
        }
        for masked, causal in ((3, 1), (1, 1), (1, 3))
    },
    "diffusion": {"objective": "diffusion", "masking": None},
}
VIEWS: dict[str, tuple[str, ...]] = {name: ("causal",) if name == "causal" else ("bidirectional",) for name in RECIPES}
VIEWS |= {name: ("bidirectional", "causal") for name in RECIPES if " and " in name}
_FINE_TUNING = threading.Lock()  # it seeds the generator of this process
Measured = dict[str, dict[str, BySeed]]
"""By measure and recipe: the values of its seeds."""


def main() -> None:
    args = arguments()
    prepare(args, VALID_FRACTION)
    seeds = range(1, args.pretrainings + 1)
    steps = dict.fromkeys(RECIPES, CONFIG["train"]["steps"])
    make(args, steps, seeds)
    at_equal_time = equal_time_steps(args, seeds)
    make(args, at_equal_time, seeds)
    pages = [measure(args, which, seeds) for which in (steps, steps | at_equal_time)]
    report(args, steps | at_equal_time, *pages)


def arguments() -> argparse.Namespace:
    parser = task_options(__doc__, "objectives")
    parser.add_argument("--steps", type=int, default=2000, help="of each recipe, at equal tokens")
    parser.add_argument("--jobs", type=int, default=1, help="models trained at the same time")
    parser.add_argument("--pretrainings", type=int, default=3, help="seeds of each recipe")
    args = parsed_with_tasks(parser, steps=4, pretrainings=1)
    CONFIG["train"]["steps"] = args.steps
    return args


def make(args: argparse.Namespace, steps: Mapping[str, int], seeds: Iterable[int]) -> None:
    """Train and measure recipes, seed by seed: an interrupted benchmark has all recipes with the first seeds."""
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(make_one, args, name, seed, steps[name]) for seed in seeds for name in steps]
        for job in jobs:
            job.result()


def make_one(args: argparse.Namespace, name: str, seed: int, steps: int) -> None:
    pretrain(args, name, seed, steps)
    of_run(args, run_name(name, seed, steps), VIEWS[name])


def run_name(name: str, seed: int, steps: int) -> str:
    words = name.replace(" and ", "-").replace(" ", "-").replace(":", "to")
    return f"{words}-{steps}-{seed}"


def pretrain(args: argparse.Namespace, name: str, seed: int, steps: int) -> None:
    """Train one model and export it for each of its views, unless that is done."""
    folder = run_name(name, seed, steps)
    run_of = {"run": {"dir": f"runs/{folder}", "seed": seed}, "train": CONFIG["train"] | {"steps": steps}}
    config = config_of(folder, RECIPES[name] | run_of)
    missing = [view for view in VIEWS[name] if not (args.work / "models" / f"{folder}-{view}").exists()]
    if missing:
        (args.work / f"{folder}.yaml").write_text(yaml.safe_dump(config))
        maskwright(args, "train", f"{folder}.yaml", "--procs", args.procs)
    for view in missing:
        maskwright(args, "export", f"runs/{folder}", "--view", view, "--out", f"models/{folder}-{view}")


def equal_time_steps(args: argparse.Namespace, seeds: range) -> dict[str, int]:
    """Steps of the slower recipes in the time that the masked models took.

    A recipe's time is the first quartile of its steps, because other work may slow some of them.
    """
    steps = CONFIG["train"]["steps"]
    runs = {name: [args.work / "runs" / run_name(name, seed, steps) for seed in seeds] for name in RECIPES}
    seconds = {name: np.quantile([one for run in of for one in step_seconds(run)], 0.25) for name, of in runs.items()}
    fewer = {name: max(1, round(steps * seconds[MASKED] / one)) for name, one in seconds.items()}
    return {name: count for name, count in fewer.items() if count < steps}


def measure(args: argparse.Namespace, steps: Mapping[str, int], seeds: range) -> Measured:
    """All measures of the recipes at these steps."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for name, count in steps.items():
        for seed in seeds:
            for measure, value in of_run(args, run_name(name, seed, count), VIEWS[name]).items():
                found.setdefault(measure, {}).setdefault(name, {})[seed] = value
    return {measure: {**by_recipe} for measure, by_recipe in found.items()}


def of_run(args: argparse.Namespace, folder: str, views: tuple[str, ...]) -> dict[str, float]:
    """The measures of a run, by name."""
    file, found = args.work / f"{folder}-evaluation.json", {}
    if not file.exists():
        pairs = ["--pairs", args.pairs, "--limit", args.pairs_limit]
        data = ["--data", "data/valid", "--rows", str(ROWS), "--seq-len", str(SEQ_LEN)]
        models = [f"models/{folder}-{view}" for view in views]
        maskwright(args, "evaluate", *models, *pairs, *data, "--json", file.name)
    for name, results in json.loads(file.read_text(encoding="utf-8"))["models"].items():
        view = "causal" if name.endswith("-causal") else "masked"
        found[f"BLiMP, {view}, %"] = 100 * results["pairs"]["accuracy"]
        found[f"nats a token, {'exact' if view == 'causal' else 'bound'}"] = nats_a_token(args, Path(name).name)
        found[f"loss of 15% of tokens, {view}"] = results["held_out"]["loss"]
    model = args.work / "models" / f"{folder}-{views[0]}"
    with _FINE_TUNING:
        found["SST-2, %"] = 100 * mean_of([*fine_tune(args, folder, model).by_seed.values()]).mean
    return found


def nats_a_token(args: argparse.Namespace, model: str) -> float:
    """The likelihood of all tokens of the held-out rows. A result in --work is used again."""
    file = args.work / f"{model}-likelihood.json"
    if not file.exists():
        held_out = HeldOut(Dataset(args.work / "data/valid"), Masks(ROWS, SEQ_LEN, 0.15))
        found = row_likelihoods(held_out, open_model(args.work / "models" / model), DRAWS)
        write_json(file, float(found.nats.sum() / found.tokens.sum()))
    return float(json.loads(file.read_text(encoding="utf-8")))


def report(args: argparse.Namespace, steps: Mapping[str, int], tokens: Measured, time: Measured) -> None:
    size, train = CONFIG["model"]["size"], CONFIG["train"]
    data = Dataset(args.work / "data/train").manifest.totals.tokens
    page = f"""# Objectives

ModernBERTs of {size["layers"]} layers x {size["hidden"]} with {args.vocab_size:,} ids, trained on books \
({data / 1e6:.1f} M tokens)
in {train["precision"]} with {args.pretrainings} seeds each. Mixtures are of masked next-token prediction and causal
language modelling, by shares of the rows. Intervals (95%) are Student's t over seeds of pretraining; differences are
from the masked models with the same seeds, adjusted by Holm's procedure for each measure.

- BLiMP: {args.pairs_limit} pairs of each set, by pseudo-log-likelihood (masked) or log-likelihood (causal).
- Nats a token over all ordinary tokens: exact for a causal view, a bound for a masked one
  (`experiments/text_likelihood.py`).
- SST-2: of the bidirectional model; the causal recipe has only its causal one. The mean over seeds of fine-tuning:
  {sst2_finetuning.settings_of(args)}

## At equal tokens

{train["steps"]:,} steps of {train["global_batch_size"]} rows of {SEQ_LEN} tokens.

{results(tokens)}

## At equal time

The masked models as above; the others took fewer steps, so that they trained as long on the same machine:
{", ".join(f"{name} {count:,}" for name, count in steps.items())}. A step's time is the first quartile of a recipe's
steps. Other work shared the machine, so ratios of times may be wrong by 10%.

{results(time)}
"""
    write_page(args.out, page, ("torch", "deepspeed", "transformers"))


def results(found: Measured) -> str:
    rows = []
    for measure, by_recipe in found.items():
        others = [name for name in by_recipe if name != MASKED] if MASKED in by_recipe else []
        minus = paired_differences([(by_recipe[name], by_recipe[MASKED]) for name in others])
        against = dict(zip(others, minus, strict=True))
        for name, by_seed in by_recipe.items():
            mean = mean_of([*by_seed.values()])
            row = [measure, name, _value(mean.mean, mean.interval, "")]
            if one := against.get(name):
                verdict = f"p = {one.p_adjusted:.2g}" if one.significant else "not significant"
                row += [_value(one.mean, one.interval, "+"), verdict]
            rows.append(row + [""] * (5 - len(row)))
    return table(["measure", "recipe", "mean", "minus masked", ""], *rows)


def _value(value: float, interval: tuple[float, float] | None, sign: str) -> str:
    between = f" ({interval[0]:{sign}.2f} to {interval[1]:{sign}.2f})" if interval else ""
    return f"{value:{sign}.2f}{between}"


if __name__ == "__main__":
    run(main)
