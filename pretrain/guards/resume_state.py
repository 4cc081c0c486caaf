"""Resume state of a run, apart from weights and optimizer."""

from dataclasses import dataclass, field

from pretrain.checkpoint import Checkpoint
from pretrain.data import MixturePosition
from pretrain.guards.guard_history import GuardHistory


@dataclass(frozen=True)
class ResumeState:
    """The number of steps, the position in the stream, and the state of the guards.

    replaced_tokens: the number of tokens that replaced damaged tokens.
    init: the digest of the weights that the run began with; None if they were random.
    history: the state of the guards.
    """

    steps_done: int
    position: MixturePosition
    replaced_tokens: int = 0
    init: str | None = None
    history: GuardHistory = field(default_factory=GuardHistory)

    @classmethod
    def of(cls, saved: Checkpoint) -> "ResumeState":
        """The state of the run that wrote a checkpoint."""
        state = saved.state
        position = MixturePosition.from_json(state["position"])
        init, history = state["identity"].get("model.init (weights)"), GuardHistory.from_json(state["guards"])
        return cls(saved.step, position, state["replaced_tokens"], init, history)
