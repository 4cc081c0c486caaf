"""The recipes of the speedrun: the usual one, the search for its best settings, and ideas that change it."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.train_vs_hf import BETAS, EPS, GRAD_CLIP, SEQ_LEN, WEIGHT_DECAY

WARMUP = 0.06  # of the steps (Liu et al., 2019)
EASY = "easy"  # the half of the documents with the most frequent words
OPTIM = {"betas": list(BETAS), "eps": EPS, "weight_decay": WEIGHT_DECAY, "grad_clip": GRAD_CLIP}  # of both sides


@dataclass(frozen=True)
class Setting:
    """Searched settings of the usual recipe: AdamW, linear schedule, no dropout."""

    arch: str = "bert"
    batch: int = 32
    mask_rate: float = 0.15
    lr: float = 1e-3

    def __str__(self) -> str:
        return f"{self.arch}, {self.batch} rows, {self.mask_rate:.0%} masked, rate {self.lr:g}"


SEARCH_RULE = """Three rates with BERT's form, 32 rows and 15% masked. Then, from the best run so far, ModernBERT's
form, 8 rows, and 30% masked; each is kept if it is better. Then twice and half the rate of the best run, until both
have been run or no runs are left."""


def search(measure: Callable[[Setting], float], runs: int) -> dict[Setting, float]:
    """Search by SEARCH_RULE. Returns what `measure` gave for each setting; lower is better."""
    values: dict[Setting, float] = {}

    def try_out(setting: Setting) -> None:
        if setting not in values and len(values) < runs:
            values[setting] = measure(setting)

    for lr in (5e-4, 1e-3, 2e-3):
        try_out(Setting(lr=lr))
    try_out(replace(best_of(values), arch="modernbert"))
    try_out(replace(best_of(values), batch=8))
    try_out(replace(best_of(values), mask_rate=0.3))
    tried = 0
    while tried < len(values) < runs:
        tried, best = len(values), best_of(values)
        try_out(replace(best, lr=2 * best.lr))
        if best_of(values) == best:
            try_out(replace(best, lr=best.lr / 2))
    return values


def best_of(values: Mapping[Setting, float]) -> Setting:
    """The setting with the lowest value that is a number: a run may diverge."""
    return min(values, key=lambda setting: math.inf if math.isnan(values[setting]) else values[setting])


@dataclass(frozen=True)
class Idea:
    """Changes of a recipe: config values by `section.key`, and a factor of the learning rate.

    early: config values in the first half of the slots only. early_rows: factor of the rows of a step there.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 1.0
    early: Mapping[str, Any] = field(default_factory=dict)
    early_rows: float = 1.0


IDEAS: dict[str, Idea] = {
    "ModernBERT's form": Idea({"model.arch": "modernbert"}),
    "BERT's form": Idea({"model.arch": "bert"}),
    "Muon": Idea({"optim.name": "muon"}, lr=3),
    "falling mask rate": Idea({"masking.rate": {"schedule": "linear", "start": 0.4, "end": 0.15}}),
    "whole words": Idea({"masking.strategy": "whole_word"}),
    "no random tokens": Idea({"masking.replacement": {"mask": 1.0, "random": 0.0}}),
    "batches of 16": Idea({"train.global_batch_size": 16}),
    "late decay": Idea({"schedule.kind": "wsd", "schedule.decay_fraction": 0.5}),
    "short rows first": Idea(early={"data.seq_len": SEQ_LEN // 2}, early_rows=2),
    "small batches first": Idea(early_rows=0.5),
    "masked and causal": Idea({"objective": [{"kind": "mntp", "share": 0.5}, {"kind": "clm", "share": 0.5}]}),
    "averaged weights": Idea({"optim.ema": 0.98}),
    "frequent words first": Idea(early={"data.train": EASY}),
    "half the vocabulary": Idea({"data.train": "half"}),
    "twice the vocabulary": Idea({"data.train": "twice"}),
    "half the rate": Idea(lr=0.5),
    "twice the rate": Idea(lr=2),
}
OURS = ("ModernBERT's form", "Muon", "falling mask rate", "whole words", "no random tokens", "batches of 16")


def values_of(ideas: Collection[str], usual: Setting, tokens: int) -> dict[str, Any]:
    """Config values, by `section.key`, of a run of about `tokens` slots: the usual recipe with ideas.

    data.train is EASY or a name of a vocabulary.
    """
    values: dict[str, Any] = {
        "data.train": "usual",
        "data.seq_len": SEQ_LEN,
        "masking.rate": usual.mask_rate,
        "model.arch": usual.arch,
        "optim.name": "adamw",
        "optim.lr": usual.lr,
        "schedule.kind": "linear",
        "train.global_batch_size": usual.batch,
    }
    early, rows = {}, 1.0
    for idea in (IDEAS[name] for name in ideas):
        values |= idea.values
        values["optim.lr"] *= idea.lr
        early, rows = early | dict(idea.early), rows * idea.early_rows
    late = {name: values[name] for name in ("data.train", "data.seq_len", "train.global_batch_size")}
    first = late | early | {"train.global_batch_size": round(rows * late["train.global_batch_size"])}
    halves = [(half, _steps(half, tokens // 2)) for half in (first, late)]
    steps = sum(count for _, count in halves) if first != late else _steps(late, tokens)
    if first != late:
        values["phases"] = [
            {"name": f"half {n}", "steps": count, **nested(half)} for n, (half, count) in enumerate(halves)
        ]
    return values | {"train.steps": steps, "schedule.warmup_steps": round(WARMUP * steps)}


def _steps(values: Mapping[str, Any], tokens: int) -> int:
    return max(2, tokens // (values["train.global_batch_size"] * values["data.seq_len"]))


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """`section.key` values as a nested config."""
    config: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        if key:
            config.setdefault(section, {})[key] = value
        else:
            config[section] = value
    return config
