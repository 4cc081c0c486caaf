"""Which tokens are masked: BLiMP and SST-2 of masked models that select some tokens more often than others.

    python -m experiments.selected_tokens --input books.jsonl.zst --pairs blimp.jsonl.zst
        --train sst2-train.tsv --valid sst2-dev.tsv

Uniform selection, and rarer tokens.
`maskwright prep weights` writes the lists. The models differ in nothing else. It runs maskwright's commands. Run the
same command again to resume: results in --work are used again.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from experiments import small_models, sst2_finetuning
from experiments.common import maskwright, prepare, run, write_page
from experiments.small_models import (
    CONFIG,
    NATURAL,
    VALID_FRACTION,
    evaluate_pairs,
    parsed_with_tasks,
    task_options,
    train_all,
)
from experiments.sst2_finetuning import Tuned, accuracy_table, fine_tune
from experiments.word_order import blimp, credits_of, losses

LISTS = {"rare": ("--frequency", "0.5")}
SELECTIONS: dict[str, dict[str, Any]] = {
    NATURAL: {},
    "rare": {"selection": {"weights": "lists/rare.json"}},
}


def main() -> None:
    args = parsed_with_tasks(task_options(__doc__, "selected_tokens"))
    (args.work / "lists").mkdir(exist_ok=True)
    prepare(args, VALID_FRACTION)
    for name, how in LISTS.items():
        if not (args.work / f"lists/{name}.json").exists():
            maskwright(args, "prep", "weights", "data/train", "--out", f"lists/{name}.json", *how)
    common = {"eval": CONFIG["eval"] | {"masks": "common"}}
    train_all(args, {name: {"masking": CONFIG["masking"] | own} | common for name, own in SELECTIONS.items()})
    evaluate_pairs(args, SELECTIONS)
    report(args, {name: fine_tune(args, name, args.work / "models" / name) for name in SELECTIONS})


def report(args: argparse.Namespace, tuned: Mapping[str, Tuned]) -> None:
    page = f"""# Masked models that select some tokens more often

{small_models.about(args, list(SELECTIONS))}

- {NATURAL}: all tokens have the same chance.
- rare: a token's weight is its count to the power -0.5.

All have the same limit of predicted tokens. [Which tokens](../../docs/masking.md) explains the settings.

The held-out loss is of the same uniform masks for all models.

{losses(args, list(SELECTIONS))}

## BLiMP

{blimp(credits_of(args))}

## SST-2

{accuracy_table(tuned, NATURAL)}

- {sst2_finetuning.about(args)}.
"""
    write_page(args.out, page, ("torch", "deepspeed", "transformers"))


if __name__ == "__main__":
    run(main)
