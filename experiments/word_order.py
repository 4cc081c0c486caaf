"""Word order: BLiMP and SST-2 of masked models that were trained on text with shuffled words.

    python -m experiments.word_order --input books.jsonl.zst --pairs blimp.jsonl.zst
        --train sst2-train.tsv --valid sst2-dev.tsv

Sinha et al., "Masked Language Modeling and the Distributional Hypothesis: Order Word Matters Pre-training for Little",
EMNLP 2021 (arXiv:2104.06644): one model for natural text, and one for each length of the n-grams that are shuffled in
each document. The models differ in nothing else. It runs maskwright's commands. Run the same command again to resume:
results in --work are used again.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.likelihood.evaluate_models import paired_bootstrap
from experiments import small_models, sst2_finetuning
from experiments.charts import COLOURS, chart
from experiments.common import held_out_losses, prepare, run, table, write_page
from experiments.paired import compare, share
from experiments.shuffled_text import prepare_shuffled
from experiments.small_models import (
    CONFIG,
    NATURAL,
    VALID_FRACTION,
    evaluate_pairs,
    parsed_with_tasks,
    task_options,
    train_all,
)
from experiments.sst2_finetuning import Tuned, accuracy_table, fine_tune, plot_accuracy

NGRAMS = {NATURAL: 0, "3-grams": 3, "2-grams": 2, "1-grams": 1}


def main() -> None:
    args = parsed_with_tasks(task_options(__doc__, "word_order"))
    prepare(args, VALID_FRACTION)
    sets = {name: prepare_shuffled(args, "data/train", n, name) for name, n in NGRAMS.items() if n}
    train_all(args, {NATURAL: {}} | {name: {"data": CONFIG["data"] | {"train": of}} for name, of in sets.items()})
    evaluate_pairs(args, NGRAMS)
    tuned = {name: fine_tune(args, name, args.work / "models" / name) for name in NGRAMS}
    tuned["random weights"] = fine_tune(args, "random", args.work / "models" / NATURAL, init="random")
    report(args, tuned)


def report(args: argparse.Namespace, tuned: Mapping[str, Tuned]) -> None:
    credit = credits_of(args)
    picture = args.out.with_suffix(".png")
    draw_figure(picture, credit, tuned)
    page = f"""# Masked models of text with shuffled words

As [Sinha et al. (2021)](https://arxiv.org/abs/2104.06644). "n-grams": the words of each document are shuffled as
n-grams, once. {small_models.about(args, list(NGRAMS))}

The held-out loss is of text in natural order, for all models.

{losses(args, list(NGRAMS))}

![BLiMP and SST-2 by the length of the n-grams that are shuffled]({picture.name})

## BLiMP

{blimp(credit)}

## SST-2

{accuracy_table(tuned, NATURAL)}

- {sst2_finetuning.about(args)}.
"""
    write_page(args.out, page, ("torch", "deepspeed", "transformers"))


def credits_of(args: argparse.Namespace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By model, what evaluation.json says of BLiMP's sets, see by_set."""
    models = json.loads((args.work / "evaluation.json").read_text(encoding="utf-8"))["models"]
    return {Path(name).name: by_set(results["pairs"]) for name, results in models.items()}


def blimp(credit: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """Table of BLiMP with the differences from NATURAL, and how they were found."""
    pairs = next(iter(credit.values()))[1]
    others = [name for name in credit if name != NATURAL]
    minus = dict(zip(others, compare([(credit[NATURAL][0], credit[name][0]) for name in others], pairs), strict=True))
    rows = (
        [name, share(right, pairs), *((str(minus[name]), minus[name].verdict) if name in minus else ("", ""))]
        for name, (right, _) in credit.items()
    )
    return f"""{int(pairs.sum()):,} pairs of {len(pairs)} sets ([Warstadt et al., 2020]\
(https://arxiv.org/abs/1912.00582)), by
pseudo-log-likelihood. Intervals (95%) are a bootstrap over sets. p: a paired randomization test over sets, adjusted by
Holm's procedure.

{table(["model", "accuracy, %", f"{NATURAL} minus this, points", ""], *rows)}"""


def losses(args: argparse.Namespace, names: list[str]) -> str:
    found = {name: held_out_losses(args.work / "runs" / name) for name in names}
    steps = [f"{step:,}" for step in next(iter(found.values()))]
    rows = ([name, *(f"{loss:.3f}" for loss in of.values())] for name, of in found.items())
    return table(["held-out loss (nats) after step", *steps], *rows)


def by_set(results: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Right pairs (a tie counts half) and all pairs of each of BLiMP's sets, in order of their names."""
    sets = [found for name, found in sorted(results["by"].items()) if name.startswith("UID:")]
    pairs = np.array([found["pairs"] for found in sets], dtype=np.float64)
    return np.array([found["accuracy"] for found in sets]) * pairs, pairs


def draw_figure(path: Path, credit: Mapping[str, tuple[np.ndarray, np.ndarray]], tuned: Mapping[str, Tuned]) -> None:
    with chart(path, 9, 3.6) as figure:
        left, right = figure.subplots(1, 2)
        for place, (found, pairs) in enumerate(credit.values()):
            low, high = paired_bootstrap(found, pairs) or (np.nan, np.nan)
            left.plot([place], [100 * found.sum() / pairs.sum()], "o", color=COLOURS[0])
            left.plot([place, place], [100 * low, 100 * high], color="black", linewidth=1)
        left.set_xticks(range(len(credit)), list(credit), rotation=20, ha="right")
        left.set_ylabel("BLiMP accuracy, %")
        plot_accuracy(right, tuned, COLOURS[1])


if __name__ == "__main__":
    run(main)
