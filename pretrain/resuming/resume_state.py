"""Resume state of a run apart from weights and optimizer, as a checkpoint holds it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_prep.common.errors import one_line
from data_prep.common.reading import typed
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config
from pretrain.data import PLAN_VERSION, MixturePosition
from pretrain.guards import GuardHistory
from pretrain.model import read_description

# JSON objects in the state of a checkpoint
_STORED = {"position", "guards", "identity", "layout", "shape", "data_of_phases", "config"}


@dataclass(frozen=True)
class ResumeState:
    """The number of steps, the position in the stream, and the state of the guards.

    replaced_tokens: the number of tokens that replaced damaged tokens.
    init: the digest of the weights that the run began with; None if they were random.
    history: the state of the guards.
    checkpoint: the folder that this was read from.
    """

    steps_done: int
    position: MixturePosition
    replaced_tokens: int = 0
    init: str | None = None
    history: GuardHistory = field(default_factory=GuardHistory)
    checkpoint: Path | None = field(default=None, compare=False)

    @classmethod
    def of(cls, saved: Checkpoint) -> "ResumeState":
        """The state of the run that wrote a checkpoint; raises ValueError if it is not valid."""
        state = saved.state
        position = typed(MixturePosition, state["position"])
        init, history = state["identity"].get("model.init (weights)"), typed(GuardHistory, state["guards"])
        return cls(saved.step, position, typed(int, state["replaced_tokens"]), init, history, saved.path)


def state_problem(saved: Checkpoint) -> str | None:
    """The problem with the state of a verified checkpoint, or None; of another plan version, only its outline."""
    try:
        _check_state(saved)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        if error.errors()[0]["type"] == "extra_forbidden":
            return one_line(f"{saved.path} was written by another version of Maskwright, whose config has {place}")
        return one_line(f"{saved.path}: the config in its manifest is not valid at {place}")
    except ValueError as error:
        return one_line(f"{saved.path}: the state in its manifest is not valid: {error}")
    return None


def _check_state(saved: Checkpoint) -> None:
    state = saved.state
    for name in ("identity", "config"):
        typed(dict[str, Any], state.get(name))
    if state["identity"].get("plan version") != PLAN_VERSION:
        return  # another version may store other things; such a checkpoint is refused for its version
    typed(dict[str, dict[str, Any]], {name: state.get(name) for name in _STORED})
    typed(int, state.get("replaced_tokens"))
    ResumeState.of(saved)
    Config.model_validate(state["config"])
    for name, lowest in (("processes", 1), ("zero.stage", 0)):
        if typed(int, state["layout"].get(name)) < lowest:
            raise ValueError(f"layout.{name} is less than {lowest}")
    read_description(state["shape"])
