"""The arms of a sweep: a grid over keys of the config, and the config of each arm."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.urls import hide_secrets
from data_prep.storage import is_hub_name
from pretrain.config import Config
from pretrain.config_files import config_values, on_one_line, override_choices
from pretrain.resuming import load_to_start

_FIXED = {
    "run": "the study names and seeds the runs",
    "track": "it does not change a model",
    "cluster": "it does not change a model",
    "eval": "all arms are measured in the same way",
    "data.valid": "all arms are compared by one held-out data set",
}
"""Keys that all arms share, and why."""
_LONGEST = 60  # characters of a value in a name


@dataclass(frozen=True)
class Sweep:
    """The arms of a study that is to start.

    values: the config as written, without defaults: an override changes what is derived from its key, too.
    overrides: of each arm, by its name. configs: of each arm, in the same order.
    """

    values: dict[str, Any]
    overrides: dict[str, dict[str, Any]]
    configs: list[Config]


def open_sweep(path: Path, changes: Sequence[str], over: Sequence[str]) -> Sweep:
    """Load and check the config of each arm.

    Args:
        changes: overrides of all arms, `KEY=VALUE`. over: `KEY=VALUE,VALUE`; the first key is in the outer loop.

    Raises UserError for an invalid or repeated value, naming the arm.
    """
    changes = [*changes]
    if any(change.startswith("run.seed=") for change in changes):
        raise UserError("run.seed: a study numbers its seeds from 1. Leave it out, and write --seeds N for N seeds.")
    config_values(path, changes)  # its errors are of no arm
    overrides, configs = grid(over), list[Config]()
    for name, own in overrides.items():
        try:
            config = load_to_start(path, [*changes, *arm_words(own)], keep=True)[0]
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        if config.model.init is not None and is_hub_name(config.model.init):  # with its commit, which all starts keep
            if "model.init" in own:
                own["model.init"] = str(config.model.init)
            elif not configs:
                changes.append(f"model.init={config.model.init}")
        configs.append(config)
    return Sweep(config_values(path, changes), overrides, configs)


def arm_words(overrides: Mapping[str, Any]) -> list[str]:
    """The overrides of an arm as words of a command. A section is replaced as a whole."""
    return [f"{key}={on_one_line(value)}" for key, value in overrides.items()]


def grid(over: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The overrides of each arm, by the arm's name, such as `lr=0.001,hidden=128`.

    Raises UserError for a malformed or repeated key or value, a key inside another one, and one that all arms share.
    """
    axes: dict[str, list[Any]] = {}
    for text in over:
        key, equals, values = text.partition("=")
        if not equals or not (choices := override_choices(key, values)):
            raise UserError(f"--over {key}: write a key of the config and its values, as in optim.lr=1e-3,3e-3")
        if reason := next((why for fixed, why in _FIXED.items() if _overlap(key, fixed)), None):
            advice = "Write --seeds N for N seeds" if key == "run.seed" else "Change it for all arms, without --over"
            raise UserError(f"--over {key}: {reason}. {advice}.")
        if any(choice in choices[:place] for place, choice in enumerate(choices)):
            raise UserError(f"--over {key}: give each of its values once")
        if any(_overlap(key, other) for other in axes):
            raise UserError(f"--over {key}: give each key once, and no key inside another one")
        axes[key] = choices
    arms: dict[str, dict[str, Any]] = {}
    for choice in itertools.product(*axes.values()):
        overrides = dict(zip(axes, choice, strict=True))
        name = arm_name(overrides)
        if name in arms or len(name) > 200:
            which = "two arms" if name in arms else "an arm"
            raise UserError(f"--over: {name} would name {which}. Vary fewer keys, or write other values.")
        arms[name] = overrides
    return arms


def _overlap(key: str, other: str) -> bool:
    """Whether one of two keys is inside the other, or they are equal."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def arm_name(overrides: Mapping[str, Any]) -> str:
    """The last parts of keys, or whole keys if two of these are equal, and the values: `lr=0.001,hidden=128`."""
    last = [key.rpartition(".")[2] for key in overrides]
    labels = last if len({*last}) == len(last) else [*overrides]
    return ",".join(f"{in_name(name)}={in_name(value)}" for name, value in zip(labels, overrides.values(), strict=True))


def in_name(value: Any) -> str:
    """A value with only letters that a folder name may have."""
    if isinstance(value, dict | list):
        return "-".join(map(in_name, value.values() if isinstance(value, dict) else value))
    if isinstance(value, float):
        return f"{value:.12g}"
    text = hide_secrets(value) if isinstance(value, str) else on_one_line(value)
    if isinstance(value, int):
        return text[:_LONGEST]
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")[-_LONGEST:]
