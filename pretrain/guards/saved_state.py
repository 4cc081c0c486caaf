"""Check the state of a checkpoint other than weights and optimizer, before anything is built from it."""

from dataclasses import dataclass, fields
from typing import Any

from pydantic import ValidationError

from data_prep.errors import one_line
from data_prep.reading import typed
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config
from pretrain.data import PLAN_VERSION, MixturePosition
from pretrain.guards.guard_history import GuardHistory
from pretrain.model import EncoderShape


@dataclass(frozen=True)
class _State:
    """The state from which a run resumes."""

    position: dict[str, Any]
    replaced_tokens: int
    guards: dict[str, Any]
    identity: dict[str, Any]
    layout: dict[str, Any]
    shape: dict[str, Any]
    config: dict[str, Any]


def state_problem(found: Checkpoint) -> str | None:
    """The problem with the state of a verified checkpoint, or None; of another plan version, only its outline."""
    try:
        _check(found.state)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        return one_line(f"{found.path}: the config in its manifest is not valid at {place}")
    except ValueError as error:
        return one_line(f"{found.path}: the state in its manifest is not valid: {error}")
    return None


def _check(state: dict[str, Any]) -> None:
    for name in ("identity", "config"):
        typed(dict[str, Any], state.get(name))
    if state["identity"].get("plan version") != PLAN_VERSION:
        return  # another version may store other things; such a checkpoint is refused for its version
    names = {field.name for field in fields(_State)}
    typed(_State, {name: value for name, value in state.items() if name in names})
    MixturePosition.from_json(state["position"])
    GuardHistory.from_json(state["guards"])
    Config.model_validate(state["config"])
    for name, lowest in (("processes", 1), ("zero.stage", 0)):
        if typed(int, state["layout"].get(name)) < lowest:
            raise ValueError(f"layout.{name} is less than {lowest}")
    if state["shape"].get("arch") == "auto":
        typed(dict[str, Any], state["shape"].get("config"))
    else:
        typed(EncoderShape, state["shape"])
