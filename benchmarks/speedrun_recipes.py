"""The recipes that speedrun.py compares: the usual one, and ideas that change it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SEQ_LEN = 128
WARMUP = 0.06  # of the steps (Liu et al., 2019)

OURS = ("falling mask rate", "Muon", "learning rate", "small batches")
IDEAS = (*OURS, "late decay", "scaled init", "short rows first", "ModernBERT's form")


@dataclass(frozen=True)
class Size:
    """The model of both sides, the batch of the usual recipe in rows, and our learning rate and batch."""

    layers: int
    hidden: int
    heads: int
    batch_size: int
    micro_batch_size: int
    our_lr: float
    our_batch_size: int


SMALL = Size(layers=4, hidden=256, heads=4, batch_size=32, micro_batch_size=32, our_lr=3e-3, our_batch_size=16)
# Our values are guesses.
BASE = Size(layers=12, hidden=768, heads=12, batch_size=256, micro_batch_size=256, our_lr=1e-3, our_batch_size=128)


def values_of_ideas(size: Size) -> dict[str, dict[str, Any]]:
    """Config values, by `section.key`, that each idea sets."""
    found: tuple[dict[str, Any], ...] = (
        {"masking.rate": {"schedule": "linear", "start": 0.4, "end": 0.15}},
        {"optim.name": "muon"},
        {"optim.lr": size.our_lr},
        {"train.global_batch_size": size.our_batch_size},
        {"schedule.kind": "wsd", "schedule.decay_fraction": 0.6},
        {"model.scaled_init": True},
        {"data.seq_len": SEQ_LEN // 2},
        {"model.arch": "modernbert"},  # as many layers of the same width, with fewer parameters
    )
    return dict(zip(IDEAS, found, strict=True))


def values_of(ideas: Iterable[str], size: Size, lr: float, tokens: int) -> dict[str, Any]:
    """Config values, by `section.key`, of a run of about `tokens` slots: the usual recipe with ideas."""
    values: dict[str, Any] = {
        "data.seq_len": SEQ_LEN,
        "masking.rate": 0.15,
        "model.size": {"layers": size.layers, "hidden": size.hidden, "heads": size.heads},
        "optim.name": "adamw",
        "optim.lr": lr,
        "schedule.kind": "linear",
        "train.global_batch_size": size.batch_size,
    }
    for idea in ideas:
        values |= values_of_ideas(size)[idea]
    batch = values["train.global_batch_size"]
    steps = max(2, tokens // (batch * SEQ_LEN))
    values |= {"train.steps": steps, "schedule.warmup_steps": round(WARMUP * steps)}
    values["train.micro_batch_size"] = min(size.micro_batch_size, batch)
    if (short := values["data.seq_len"]) != SEQ_LEN:  # as many slots a step, in the first half of the steps
        factor = SEQ_LEN // short
        batches = {"global_batch_size": batch, "micro_batch_size": values["train.micro_batch_size"]}
        long = {"name": "long", "steps": steps - steps // 2, "data": {"seq_len": SEQ_LEN}, "train": batches}
        values["phases"] = [{"name": "short", "steps": steps // 2}, long]
        values["train.global_batch_size"] = batch * factor
        values["train.micro_batch_size"] *= factor
    return values


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
