"""Config section `phases`: the parts of a run in order, each with the settings that it changes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from pretrain.config.objective import OBJECTIVES, check_objective_form
from pretrain.config.section import Section

CHANGEABLE: dict[str, tuple[str, ...]] = {  # all keys of a section, if none is listed
    "data": ("train", "temperature", "seq_len", "restart"),
    "masking": (),
    "model": ("global_rope_theta", "local_rope_theta"),
    "optim": ("lr",),
    "schedule": (),
    "train": ("global_batch_size", "micro_batch_size"),
}


class PhaseConfig(Section):
    of_whole = (*CHANGEABLE, "objective")
    name: str = Field(min_length=1, max_length=60, pattern=r"^\w[\w -]*$", description="its name in all messages")
    steps: int = Field(0, ge=1, description="optimizer steps of the phase")
    tokens: int | None = Field(None, ge=1, description="the length in slots of rows, instead of steps")
    data: dict[str, Any] = Field(
        {}, description="other data.train, temperature or seq_len; restart: read the data from a start"
    )
    objective: Annotated[Any, BeforeValidator(check_objective_form)] = Field(None, description="another objective")
    masking: dict[str, Any] = Field({}, description="keys of masking that change")
    model: dict[str, Any] = Field({}, description="another global_rope_theta or local_rope_theta")
    optim: dict[str, Any] = Field({}, description="another lr")
    schedule: dict[str, Any] = Field({}, description="another schedule of the learning rate, from here on")
    train: dict[str, Any] = Field({}, description="another global_batch_size or micro_batch_size")

    def problems(self) -> Iterator[str]:
        for section, names in CHANGEABLE.items():
            for other in getattr(self, section):
                if names and other not in names:
                    yield f"a phase cannot change {section}.{other}; it may change {section}.{', '.join(names)}"
        if self.train.get("micro_batch_size", 1) in (None, "auto"):
            yield "train.micro_batch_size auto is for the whole run; leave it out here, or write a number"
        if not isinstance(self.data.get("restart", False), bool):
            yield f"data.restart must be true or false, not {self.data['restart']!r}"

    @property
    def changes(self) -> dict[str, Any]:
        """The changed settings by key, such as "masking.rate"."""
        keys = {f"{section}.{name}": value for section in CHANGEABLE for name, value in getattr(self, section).items()}
        keys = {"masking.rate" if key == "masking.mlm_probability" else key: value for key, value in keys.items()}
        return keys if self.objective is None else keys | {"objective": self.objective}


@dataclass(frozen=True)
class StepSpan:
    """Steps over which one schedule runs: `steps` of them, after the first `start` steps of the run."""

    start: int
    steps: int


SCHEDULED = ("schedule", "masking.rate", "objective")


def spans(phases: list[PhaseConfig], number: int) -> dict[str, StepSpan]:
    """For each setting that may follow a schedule, the phases from the one that sets it to the next that does."""
    starts = [sum(phase.steps for phase in phases[:end]) for end in range(len(phases) + 1)]
    by_name = {}
    for setting in SCHEDULED:
        sets = [not n or any(key == setting or key.startswith(f"{setting}.") for key in phase.changes)
                for n, phase in enumerate(phases)]  # fmt: skip
        first = max(n for n in range(number + 1) if sets[n])
        end = next((n for n in range(number + 1, len(phases)) if sets[n]), len(phases))
        by_name[setting] = StepSpan(starts[first], starts[end] - starts[first])
    return by_name


def settings_of(base: dict[str, Any], phases: list[PhaseConfig], number: int) -> dict[str, Any]:
    """The values of the whole config in a phase: those of the phases before, with the changes laid over them.

    What it inherits and its objective or its strategy of masking does not read has its default.

    Args:
        base: values of the config without its phases.
    """
    values, objective = {name: dict(base[name]) for name in CHANGEABLE}, base["objective"]
    for phase in phases[: number + 1]:
        if "strategy" in phase.masking:
            values["masking"] = {key: value for key, value in values["masking"].items() if key != "span"}
        if phase.schedule:
            values["schedule"] = {}
        for section in CHANGEABLE:
            values[section] |= getattr(phase, section)
        values["data"].pop("restart", None)
        objective = objective if phase.objective is None else phase.objective
    own, unread = phases[number].changes, _unread(objective) if number else ()
    values["masking"] = {
        key: value for key, value in values["masking"].items() if f"masking.{key}" in own or key not in unread
    }
    return base | values | {"objective": objective, "phases": []}


def _unread(objective: Any) -> tuple[str, ...]:
    """The settings of masking that none of these objectives reads; `objective` as in a config."""
    parts = objective if isinstance(objective, list) else [{"kind": objective}]  # not checked yet
    names = [part.get("kind") for part in parts if isinstance(part, dict)]
    kinds = [OBJECTIVES[name] for name in names if isinstance(name, str) and name in OBJECTIVES]
    return tuple(name for name in kinds[0].unread if all(name in kind.unread for kind in kinds)) if kinds else ()


def named(error: ValidationError, phase: str) -> ValidationError:
    """The error with the name of the phase in front of each key."""
    details = []
    for item in error.errors():
        known = item["type"] in get_args(ErrorType)
        kind = item["type"] if known else PydanticCustomError(item["type"], item["msg"].replace("{", "{{"))
        details.append(
            InitErrorDetails(
                type=kind, loc=("phases", phase, *item["loc"]), input=item["input"], ctx=item.get("ctx", {})
            )
        )
    return ValidationError.from_exception_data(error.title, details)
