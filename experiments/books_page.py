"""The result page of books.py."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from benchmarks.harness import table
from data_prep.format import Dataset
from evaluation.likelihood.evaluate_models import paired_bootstrap
from evaluation.study.paired_statistics import differences, mean_of
from experiments.sst2_sentences import NAIVE_BAYES
from pretrain.config_files import load_config
from pretrain.run import Entry, JournalReader

PRETRAINED, UNTRAINED = "models/pretrained", "models/untrained"
PARTS = ("held-out", "fold-1", "fold-2")  # of the whole sentences; rates are chosen on the first
SIDES = ("pretrained", "random")
_MODELS = {PRETRAINED: "pretrained", UNTRAINED: "the same model, untrained", "unigram": "unigram model of the text"}
_COLUMNS = 8


def page(work: Path) -> str:
    """Markdown."""
    evaluation, pretrained, random = (
        json.loads((work / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("evaluation", "sst2-pretrained", "sst2-random")
    )
    return f"""# Does it learn? A small ModernBERT on books

{_training(work)}

{_evaluation(evaluation)}

## SST-2

{_finetuning(pretrained, random)}

{_parts(work)}

{_rates(work)}
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
    return f"""`configs/modernbert-mini.yaml`: {config.model.title}, {_parameters(work / PRETRAINED) / 1e6:.1f} M
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
    trained, unigram = held_out[_MODELS[PRETRAINED]]["by_frequency"], held_out[_MODELS["unigram"]]["by_frequency"]
    frequencies = table(
        ["occurrences of the token in training", "predictions", "loss", "masked accuracy", "loss of the unigram model"],
        *(
            [group, f"{one['predictions']:,}", f"{one['loss']:.2f}", f"{one['masked_accuracy']:.1%}"]
            + [f"{unigram[group]['loss']:.2f}"]
            for group, one in trained.items()
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

{parts}

{frequencies}"""


def _finetuning(pretrained: dict[str, Any], random: dict[str, Any]) -> str:
    metric, identity = pretrained["metric"], pretrained["identity"]
    sides = {"pretrained": pretrained, "random weights": random}
    header = ["", "mean (95% over seeds)", *(f"seed {run['seed']}" for run in pretrained["runs"]), "minutes a seed"]
    rows = [[name, _mean(one["scores"]), *map(_percent, one["scores"]), _minutes(one)] for name, one in sides.items()]
    rows.append(["naive Bayes on words", _percent(pretrained["baseline"][metric]), *[""] * (len(header) - 2)])
    (found,) = differences([(_by_seed(pretrained), _by_seed(random))])
    above = [score - pretrained["baseline"][metric] for score in pretrained["scores"]]
    return f"""`maskwright finetune` on all training sentences of SST-2
([Socher et al., 2013](https://aclanthology.org/D13-1170), as in GLUE): {identity["epochs"]} epochs, batches of
{identity["batch_size"]}, dropout {identity["dropout"]:g}, learning rate {identity["lr"]:g}, of random weights
{random["identity"]["lr"]:g}; accuracy on its development set after the last epoch. "Random weights" is the same
architecture trained on the same sentences without pretraining; naive Bayes uses only the words of a sentence.

{table(header, *rows)}

Pretrained minus random weights: {100 * found.mean:+.1f} points ({_interval(found.interval)} at 95%, paired by seed);
pretrained minus naive Bayes: {_mean(above, sign="+")}. The intervals cover the seeds of fine-tuning, for one
pretraining and these 872 sentences. Other sentences would change these figures by up to about three points."""


def _parts(work: Path) -> str:
    answers = [json.loads((work / part / "right.json").read_text(encoding="utf-8")) for part in PARTS]
    right = {side: np.concatenate([part[side] for part in answers]).astype(float) for side in answers[0]}
    names = {"pretrained": "pretrained", "random": "random weights", NAIVE_BAYES: NAIVE_BAYES}
    rows = []
    for side, name in names.items():
        shares = (_percent(np.mean(part[side])) for part in answers)
        differences_of = right["pretrained"] - right[side]
        interval = paired_bootstrap(differences_of, np.ones(len(differences_of)))
        less = "" if side == "pretrained" else f"{100 * differences_of.mean():+.1f} points ({_points(interval)})"
        rows.append([name, _percent(right[side].mean()), *shares, less])
    header = ["", "accuracy", *(f"part {number}" for number in range(1, len(PARTS) + 1)), "pretrained minus this"]
    count = len(right["pretrained"])
    return f"""872 sentences are few. Therefore the {count:,} whole sentences of the training set are also held out,
with all of their phrases, in {len(PARTS)} parts: one fine-tuning per side and part, with seed 1. The 95% intervals are
a paired bootstrap over sentences; other seeds would also change these figures.

{table(header, *rows)}"""


def _points(interval: tuple[float, float] | None) -> str:
    return f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}" if interval else "too few sentences"


def _rates(work: Path) -> str:
    trials = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((work / PARTS[0]).glob("*-*.json"))]
    shown = (
        [
            "pretrained" if one["identity"]["init"] == "pretrained" else "random weights",
            f"{one['identity']['lr']:g}",
            _percent(one["mean"]),
        ]
        for one in sorted(trials, key=lambda one: (one["identity"]["init"], one["identity"]["lr"]))
    )
    return f"""Each side uses its best learning rate on the first part.

{table(["", "learning rate", "accuracy"], *shown)}"""


def _by_seed(side: dict[str, Any]) -> dict[int, float]:
    return {run["seed"]: score for run, score in zip(side["runs"], side["scores"], strict=True)}


def _minutes(side: dict[str, Any]) -> str:
    return f"{sum(run['seconds'] for run in side['runs']) / len(side['runs']) / 60:.0f}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _mean(scores: Sequence[float], sign: str = "") -> str:
    found = mean_of(scores)
    return f"{found.mean:{sign}.1%} ({_interval(found.interval)})"


def _interval(interval: Sequence[float] | None) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}" if interval else "one seed"


def held_out_losses(run: Path) -> dict[int, float]:
    """Held-out losses of a run in nats, by step."""
    journal = JournalReader(run / "journal.jsonl").entries()
    return {entry.step: entry.metrics["eval/loss"] for entry in journal if "eval/loss" in entry.metrics}
