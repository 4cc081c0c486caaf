"""Lengths of a run or of its phases in tokens, words or bytes of text, turned into steps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.common.errors import UserError
from pretrain.config.data import DataConfig
from pretrain.config.phases import PhaseConfig
from pretrain.config.schema import Config, Phase
from pretrain.config.training import TrainConfig

UNITS = ("tokens", "words", "bytes")
_ENDLESS = 10**12  # steps of a part whose length is not known yet
_SPECIALS = 2  # [CLS] and [SEP] of a document


def has_budget(values: Mapping[str, Any]) -> bool:
    """Whether a part of a config has a length in one of UNITS and no steps, or checkpoints are at numbers of words."""
    return bool(_milestones(values)) or any(_unit(part) for part in _parts(values))


def with_steps(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a config with the steps of each part that has a length in one of UNITS instead.

    Numbers of words in `checkpoint.at_words` become steps in `checkpoint.at_steps`.

    Raises:
        UserError: if a data set is missing, or was made by a version that did not count words and bytes.
    """
    endless = _with(values, [_ENDLESS if _unit(part) else part.get("steps") for part in _parts(values)])
    config = Config.model_validate(endless)
    read: Sequence[PhaseConfig | TrainConfig] = config.phases or (config.train,)
    steps = [
        _steps(config, phase, unit, getattr(own, unit)) if (unit := _unit(part)) else part.get("steps")
        for part, phase, own in zip(_parts(values), config.run_phases, read, strict=True)
    ]
    values = _with(values, steps)
    if _milestones(values):
        config = Config.model_validate(values)
        at_steps = {step for words in config.checkpoint.at_words if (step := _step_at(config, words))}
        values |= {"checkpoint": values["checkpoint"] | {"at_steps": sorted(at_steps)}}
    return values


def _milestones(values: Mapping[str, Any]) -> Any:
    section = values.get("checkpoint")
    return section.get("at_words") if isinstance(section, dict) and not section.get("at_steps") else None


def _step_at(config: Config, words: float) -> int | None:
    """The first step after which a run has read so many words; None if it ends before."""
    for phase in config.run_phases:
        slots = phase.config.train.global_batch_size * phase.config.data.seq_len
        of_step = slots * _of_slot(phase.config.data, "words", phase.name)
        if (step := phase.start + math.ceil(words / of_step)) <= phase.end:
            return step
        words -= (phase.end - phase.start) * of_step
    return None


def _parts(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The phases, or `train` without phases."""
    parts = values.get("phases") or [values.get("train")]
    return parts if isinstance(parts, list) and all(isinstance(part, dict) for part in parts) else []


def _unit(part: Mapping[str, Any]) -> str | None:
    units = (unit for unit in UNITS if part.get(unit) is not None)
    return None if part.get("steps") else next(units, None)


def _with(values: dict[str, Any], steps: list[Any]) -> dict[str, Any]:
    if not values.get("phases"):
        return values | {"train": values["train"] | {"steps": steps[0]}}
    train = {key: value for key, value in (values.get("train") or {}).items() if key != "steps"}
    phases = [part | {"steps": count} for part, count in zip(values["phases"], steps, strict=True)]
    return values | {"train": train, "phases": phases}


def _steps(config: Config, phase: Phase, unit: str, budget: int) -> int:
    """The fewest steps of a phase with at least this much text."""
    data = phase.config.data
    rows = math.ceil(budget / (data.seq_len * _of_slot(data, unit, phase.name)))
    steps = max(1, math.ceil(rows / phase.config.train.global_batch_size))
    if steps > _ENDLESS:
        raise UserError(f"a length of {budget} {unit} would be more than {_ENDLESS:,} steps; give a smaller one")
    return steps


def _of_slot(data: DataConfig, unit: str, phase: str) -> float:
    """Words or bytes of text in a slot of the rows of a phase, on average over its data sets; 1 token."""
    if unit == "tokens":
        return 1.0
    if data.packing == "none":
        raise UserError(f"a length in {unit} is known for packed rows only; give steps, or another data.packing")
    from data_prep.format import Dataset  # imports numpy, which most configs do not need

    shares, of_slots = [], []
    for source in data.train:
        totals = Dataset(source.path).manifest.totals
        text = totals.words if unit == "words" else totals.text_bytes
        if text is None:
            raise UserError(
                f"{source.path} does not say how many {unit} it has, so that the steps"
                f"{f' of phase {phase}' if phase else ''} are not known; prepare it again, or give steps"
            )
        slots = totals.tokens + _SPECIALS * totals.documents
        shares.append(source.weight or (source.epochs or 1) * slots)
        of_slots.append(text / slots)
    return sum(share * of_slot for share, of_slot in zip(shares, of_slots, strict=True)) / sum(shares)
