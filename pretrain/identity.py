"""What decides the result of a step, and so may not change between two parts of one run."""

from typing import Any

from pretrain.config import Config
from pretrain.data.stream import PLAN_VERSION


def identity_of(config: Config, fingerprint: str, tokenizer_sha256: str, vocab_size: int) -> dict[str, Any]:
    """The deciding settings by name, as JSON values.

    Left out is what may change: train.steps and the schedule's length with it, the micro-batch, the number of
    processes, the ZeRO stage, and everything about checkpoints, evaluation and tracking.
    """
    values = config.model_dump(mode="json")
    found: dict[str, Any] = {
        "data.train (fingerprint)": fingerprint,
        "data.train (tokenizer)": tokenizer_sha256,
        "data.train (vocabulary)": vocab_size,
        "data.seq_len": config.data.seq_len,
        "data.window_blocks": config.data.window_blocks,
        "run.seed": config.run.seed,
        "train.global_batch_size": config.train.global_batch_size,
        "train.precision": config.train.precision,
        "plan version": PLAN_VERSION,
    }
    for section in ("masking", "model", "optim", "schedule"):
        found |= _flat(section, values[section])
    return found


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One phrase for each setting that differs: "masking.rate was 0.15 and is 0.3"."""
    names = dict.fromkeys([*before, *now])
    return [f"{n} was {before.get(n)} and is {now.get(n)}" for n in names if before.get(n) != now.get(n)]


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {name: inner for key in value for name, inner in _flat(f"{prefix}.{key}", value[key]).items()}
