"""What decides the results of a run, by name: compared when it is taken up again, and when a step is replayed."""

import json
from typing import Any

import xxhash

from pretrain.config import Config
from pretrain.data import Sources
from pretrain.data.mixture import quotas
from pretrain.data.stream import PLAN_VERSION
from pretrain.masking.collocation_units import listed

_DATA = "data.train (fingerprint)"
_INDEXES = "indexes of data.train (fingerprint)"
_OF_BATCHES = ("data.", "objective", "masking.", "run.seed", "plan version")


def identity_of(config: Config, data: Sources, steps_done: int, init: str | None = None) -> dict[str, Any]:
    """What decides the results of the first `steps_done` steps, by name, as JSON values: it may not change any more.

    `init` is the digest of the weights that the run began with, None if they were random.

    Left out are the stages of the curriculum that have not begun, and what may change: train.steps and the schedule's
    length with it, the micro-batch, and everything about checkpoints, evaluation and tracking.

    Raises:
        UserError: if a list of collocations that masking needs is missing. DamagedData: if it is not sound.
    """
    found: dict[str, Any] = {
        _DATA: data.fingerprint,
        _INDEXES: data.index_fingerprint,
        "data.train (shares)": quotas(data.weights).tolist(),
        "data.train (tokenizer)": data.tokenizer.sha256,
        "data.seq_len": config.data.seq_len,
        "data.packing": config.data.packing,
        "data.window_blocks": config.data.window_blocks,
        "data.shuffled_ngrams": config.data.shuffled_ngrams,
        "curriculum": [
            {"after_step": stage.after_step, "seq_len": stage.seq_len, "global_batch_size": stage.global_batch_size}
            for stage in config.stages[1:]
            if stage.after_step < steps_done
        ],
        "objective": config.objective,
        "run.seed": config.run.seed,
        **_first_batches(config),
        "train.precision": config.train.precision,
        "train.label_smoothing": config.train.label_smoothing,
        "train.z_loss": config.train.z_loss,
        "deepspeed": config.deepspeed,
        "plan version": PLAN_VERSION,
    }
    found |= _sections(config)
    if len(config.masking.weights) > 1:
        found["masking.strategy (order)"] = [*config.masking.weights]  # by which rows draw one
    if config.masking.collocations:
        found["masking.collocations (content)"] = listed(config.masking.collocations).digest
    found["model.max_positions"] = config.model.max_positions or config.longest_row
    found["model.init (weights)"] = init
    return found


def _first_batches(config: Config) -> dict[str, int]:
    """The size of the first batches; those of later ones stand beside the curriculum."""
    key = "train.batch_ramp.start" if config.train.batch_ramp else "train.global_batch_size"
    return {key: config.stages[0].global_batch_size}


def completed(identity: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """An identity that an earlier version recorded for `config`, as JSON values, with the settings that came later:
    what they are by default is what that version did."""
    return _sections(Config.model_validate(config)) | identity


def _sections(config: Config) -> dict[str, Any]:
    """The settings of whole sections, less those that decide nothing or that others stand for."""
    values = config.model_dump(mode="json", include={"masking", "model", "optim", "schedule"})
    del values["model"]["config"]  # the shape that a checkpoint stores has what is in it
    del values["model"]["init"]  # the weights' digest stands for where they lie
    del values["masking"]["collocations"]  # as does the list's
    del values["masking"]["device"]  # the masks are the same
    return {name: value for section in values for name, value in _flat(section, values[section]).items()}


def of_batches(identity: dict[str, Any]) -> dict[str, Any]:
    """The part of an identity that decides which rows and masks a step has, given its position and stage."""
    return {name: value for name, value in identity.items() if name.startswith(_OF_BATCHES)}


def batch_settings(config: Config, data: Sources) -> str:
    """A digest of what decides the rows and masks of a step beside the position and the stage: 16 hexadecimals."""
    identity = identity_of(config, data, 0)
    return xxhash.xxh3_64_hexdigest(json.dumps(of_batches(identity), sort_keys=True).encode())


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """For each setting that differs, a phrase: "masking.rate was 0.15 and is 0.3".

    Indexes are compared where both sides know them, and the data are the same otherwise.
    """
    names = dict.fromkeys([*before, *now])
    found = {n: f"{n} was {before.get(n)} and is {now.get(n)}" for n in names if before.get(n) != now.get(n)}
    if _DATA in found or None in (before.get(_INDEXES), now.get(_INDEXES)):
        found.pop(_INDEXES, None)
    return found


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {name: inner for key in value for name, inner in _flat(f"{prefix}.{key}", value[key]).items()}
