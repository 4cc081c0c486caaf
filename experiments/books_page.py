"""The result page of books.py."""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from data_prep.format import Dataset
from experiments import sst2_finetuning
from experiments.common import table
from experiments.sst2_finetuning import Tuned, accuracy_table
from pretrain.config_files import load_config
from pretrain.run import Entry, JournalReader

PRETRAINED, UNTRAINED = "pretrained", "untrained"
MODEL = f"models/{PRETRAINED}"
_MODELS = {
    MODEL: PRETRAINED,
    f"models/{UNTRAINED}": "the same model, untrained",
    "unigram": "unigram model of the text",
}
_COLUMNS = 8


def page(args: argparse.Namespace, tuned: Mapping[str, Tuned]) -> str:
    """Markdown."""
    evaluation = json.loads((args.work / "evaluation.json").read_text(encoding="utf-8"))
    return f"""# Does it learn? A small ModernBERT on books

{_training(args.work)}

{_evaluation(evaluation)}

## SST-2

{accuracy_table(tuned, PRETRAINED)}

- {sst2_finetuning.about(args)}.
- "Random weights" is the same architecture, fine-tuned without pretraining; naive Bayes uses only the tokens.
"""


def _training(work: Path) -> str:
    run, train, valid = work / "runs/pretrained", Dataset(work / "data/train"), Dataset(work / "data/valid")
    config, journal = load_config(run / "config.yaml"), JournalReader(run / "journal.jsonl").entries()
    steps = [entry for entry in journal if "speed/step_seconds" in entry.metrics]
    evaluated = _thinned([entry for entry in journal if "eval/loss" in entry.metrics])
    seen, seconds = sum(map(_tokens, steps)), sum(entry.metrics["speed/step_seconds"] for entry in steps)
    curve = table(
        ["step", *(f"{entry.step:,}" for entry in evaluated)],
        ["held-out loss (nats)", *(f"{entry.metrics['eval/loss']:.3f}" for entry in evaluated)],
        ["held-out masked accuracy", *(f"{entry.metrics['eval/masked_accuracy']:.1%}" for entry in evaluated)],
    )
    return f"""`configs/modernbert-mini.yaml`: {config.model.title}, {_parameters(work / MODEL) / 1e6:.1f} M
parameters, a vocabulary of {train.manifest.tokenizer.vocab_size:,} learnt from the text, rows of {config.data.seq_len}
tokens. Trained on {_millions(train)} M tokens of books; {len(steps):,} steps used {seen / 1e6:.1f} M.
{valid.manifest.totals.documents:,} documents of {_millions(valid)} M tokens are held out. {seconds / 60:.0f} minutes of
steps, {seen / seconds:,.0f} tokens a second.

{curve}

With the masks of training, at 15%."""


def _thinned(entries: Sequence[Entry]) -> Sequence[Entry]:
    """At most _COLUMNS entries at even distances, with the last one."""
    return entries[:: -math.ceil(len(entries) / _COLUMNS)][::-1]


def _tokens(entry: Entry) -> float:
    return entry.metrics["speed/tokens_per_second"] * entry.metrics["speed/step_seconds"]


def _millions(data: Dataset) -> str:
    return f"{data.manifest.totals.tokens / 1e6:.1f}"


def _parameters(folder: Path) -> int:
    with safe_open(folder / "model.safetensors", "np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - it is no dict


def _evaluation(found: dict[str, Any]) -> str:
    models = {_MODELS[name]: results for name, results in found["models"].items()}
    held_out = {name: results["held_out"] for name, results in models.items()}
    pairs = {name: results["pairs"] for name, results in models.items()}
    first = next(iter(pairs.values()))
    overall = table(
        ["", "held-out loss (nats)", "masked accuracy", "BLiMP accuracy", "ties"],
        *(
            [
                name,
                f"{held_out[name]['loss']:.3f}",
                f"{held_out[name]['masked_accuracy']:.1%}",
                f"{one['accuracy']:.1%} ({_interval(one['interval'])})",
                f"{one['ties']:,}",
            ]
            for name, one in pairs.items()
        ),
    )
    groups = [name for name in first["by"] if not name.startswith("UID:")]
    parts = table(
        ["BLiMP, part", "pairs", *pairs],
        *(
            [group.partition(":")[2].replace("_", " "), f"{first['by'][group]['pairs']:,}"]
            + [f"{one['by'][group]['accuracy']:.1%}" for one in pairs.values()]
            for group in groups
        ),
    )
    differences_of_pairs = "; ".join(
        f"{_MODELS[one['model']]}: {100 * one['difference']:+.1f} points ({_interval(one['interval'])})"
        for one in found["comparisons"]
        if one["measure"] == "pairs.accuracy"
    )
    return f"""## What it knows

{found["settings"]["held_out"]["rows"]:,} held-out rows, 15% of the tokens masked, all as `[MASK]`. This is harder than
above, where a fifth of them is shown or replaced. And BLiMP ([Warstadt et al.,
2020](https://arxiv.org/abs/1912.00582)),
{found["settings"]["pairs"]["limit"]} pairs of each of its 67 sets, by pseudo-log-likelihood
([Salazar et al., 2020](https://arxiv.org/abs/1910.14659)). In
brackets Wilson's 95% intervals, which assume independent pairs.

{overall}

Pairs, relative to the pretrained model, with 95% intervals of a paired bootstrap: {differences_of_pairs}.

{parts}"""


def _interval(interval: Sequence[float] | None) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}" if interval else "one seed"
