"""Identity of a run: the settings that decide its results. Resume and replay compare it."""

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from pretrain.checkpoint.manifest import Checkpoint
from pretrain.config import Config
from pretrain.config_files import flat
from pretrain.data import PLAN_VERSION, Sources
from pretrain.masking import cached_weights

_DATA = "data.train (fingerprint)"
_INDEXES = "indexes of data.train (fingerprint)"
_IN_BATCHES = ("data.train", "data.seq_len", "train.global_batch_size", "train.micro_batch_size")
_MOST_NAMED, _LONGEST = 3, 60  # differences in a message, and characters of a value
_OF_BATCHES = ("data.", "objective", "masking.", "run.seed", "plan version")

_PHASE = re.compile(r"^phases\.[^.]*\.(?=[a-z])")


@dataclass(frozen=True)
class Identity:
    """The settings that decide the results of a run, as JSON values by name. They may not change."""

    settings: dict[str, Any]

    @classmethod
    def of(cls, config: Config, data: Sources, steps_done: int = 0, init: str | None = None) -> "Identity":
        """The settings that decide the results of the first `steps_done` steps.

        `init` is the digest of the initial weights, or None if they were random.

        Settings that may change are left out: phases that have not begun, train.steps and the length of the last
        phase and of the schedule, the micro-batch, and all settings of checkpoints, evaluation and tracking.

        Raises:
            UserError: if a list that masking needs is missing. DamagedData: if it is not sound.
        """
        first = data.of_phase(0)
        settings: dict[str, Any] = {
            _DATA: first.fingerprint,
            _INDEXES: first.index_fingerprint,
            "data.train (shares)": first.shares(),
            "data.train (tokenizer)": data.tokenizer.sha256,
            "data.seq_len": config.data.seq_len,
            "data.packing": config.data.packing,
            "data.window_blocks": config.data.window_blocks,
            "objective": config.model_dump()["objective"],
            "run.seed": config.run.seed,
            "train.global_batch_size": config.stages[0].global_batch_size,  # later sizes are in "batches"
            "train.precision": config.train.precision,
            "train.z_loss": config.train.z_loss,
            "deepspeed": config.deepspeed,
            "plan version": PLAN_VERSION,
        }
        settings |= _sections(config) | _later(config, steps_done) | _orders(first, "")
        for phase in config.run_phases[1:]:
            if phase.start < steps_done and "data.train" in phase.changes:
                read = data.of_phase(phase.number)
                settings[f"phases.{phase.name}.{_DATA}"] = read.fingerprint
                settings[f"phases.{phase.name}.data.train (shares)"] = read.shares()
                settings |= _orders(read, f"phases.{phase.name}.")
            listed = phase.config.masking.selection.weights
            if listed and phase.start < steps_done and "masking.selection" in phase.changes:
                settings[f"phases.{phase.name}.masking.selection.weights (content)"] = cached_weights(listed).digest
        if len(config.masking.weights) > 1:
            settings["masking.strategy (order)"] = [*config.masking.weights]  # rows draw by place in it
        if listed := config.masking.selection.weights:
            settings["masking.selection.weights (content)"] = cached_weights(listed).digest
        settings["model.max_positions"] = config.model.max_positions or config.longest_row
        settings["model.init (weights)"] = init
        return cls(settings)

    @classmethod
    def stored(cls, saved: Checkpoint) -> "Identity":
        """The identity in a checkpoint. A setting that is newer than it has its default."""
        config = Config.model_validate(saved.state["config"])
        return cls(_sections(config) | _later(config, saved.step) | saved.state["identity"])

    def of_batches(self) -> "Identity":
        """The part that decides which rows and masks a step has, given its position and stage."""
        named = self.settings.items()
        return Identity({name: value for name, value in named if _PHASE.sub("", name).startswith(_OF_BATCHES)})

    def batch_digest(self) -> str:
        """A digest of `of_batches`: 16 hex digits."""
        return xxhash.xxh3_64_hexdigest(json.dumps(self.of_batches().settings, sort_keys=True).encode())

    def changes(self, now: "Identity") -> dict[str, str]:
        """A phrase for each setting that differs.

        Fingerprints of indexes are compared only if both sides have one and the data are the same; `not_stored` never.
        """
        changed = changed_settings(self.settings, now.settings)
        if _DATA in changed or None in (self.settings.get(_INDEXES), now.settings.get(_INDEXES)):
            changed.pop(_INDEXES, None)
        return {name: said for name, said in changed.items() if name not in self.not_stored(now)}

    def not_stored(self, now: "Identity") -> list[str]:
        """The lists of phases whose content an earlier version of Maskwright did not store."""
        return [n for n in now.settings if n not in self.settings and n.removesuffix(" (content)") in self.settings]


def _orders(data: Sources, prefix: str) -> dict[str, list[str]]:
    """What decides the order of blocks where sources are mixed."""
    digests = [order.digest for order in data.mixed().values()]
    return {f"{prefix}data.train (sources)": digests} if digests else {}


def _later(config: Config, steps_done: int) -> dict[str, Any]:
    """What decides the steps of later phases, if they have begun; their data excepted."""
    settings: dict[str, Any] = {
        "batches": [
            {"after_step": stage.after_step, "seq_len": stage.seq_len, "global_batch_size": stage.global_batch_size}
            for stage in config.stages[1:]
            if stage.after_step < steps_done
        ]
    }
    for phase in config.run_phases[1:]:
        if phase.start < steps_done:
            changes = {key: value for key, value in phase.changes.items() if key not in _IN_BATCHES}
            settings |= {f"phases.{phase.name}.{key}": value for key, value in flat(changes).items()}
            settings[f"phases.{phase.name} (first step)"] = phase.start + 1
            if isinstance(mix := changes.get("masking.strategy"), dict):
                settings[f"phases.{phase.name}.masking.strategy (order)"] = [*mix]
    return settings


def _sections(config: Config) -> dict[str, Any]:
    """The settings of whole sections, except those that decide nothing or that another entry covers."""
    values = config.model_dump(mode="json", include={"masking", "model", "optim", "schedule"})
    del values["model"]["config"]  # the stored shape covers it
    del values["model"]["init"]  # the digest of the weights replaces their path
    del values["masking"]["selection"]["weights"]  # the digest of the list replaces its path
    return flat(values)


def changed_settings(before: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """A phrase for each setting that differs: "masking.rate was 0.15 and is 0.3". Digests are shortened."""
    names = dict.fromkeys([*before, *now])
    pairs = {n: (before.get(n), now.get(n)) for n in names if before.get(n) != now.get(n)}
    return {n: f"{n} was {_short(then)} and is {_short(value)}" for n, (then, value) in pairs.items()}


def first_of(changed: Mapping[str, str]) -> str:
    """The first differences: keys of the config, then digests of content, then others; and how many more there are."""
    ordered = [changed[name] for name in sorted(changed, key=lambda name: 1 if "(" in name else 2 * ("." not in name))]
    more = f" (and {len(ordered) - _MOST_NAMED} more)" if len(ordered) > _MOST_NAMED else ""
    return f"{'; '.join(ordered[:_MOST_NAMED])}{more}"


def _short(value: Any) -> Any:
    """A value; of a text, digests in 12 digits, and at most 60 characters."""
    short = re.sub(r"[0-9a-f]{12}(?=[0-9a-f]{12})[0-9a-f]+", lambda match: match[0][:12], str(value))
    return value if len(str(value)) <= _LONGEST else textwrap.shorten(short, _LONGEST, placeholder=" ...")
