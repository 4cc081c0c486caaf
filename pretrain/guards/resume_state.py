"""How far a run has come: what a resumed run goes on from, beside weights and optimizer."""

from dataclasses import dataclass, field

from pretrain.checkpoint import Checkpoint
from pretrain.data import MixturePosition
from pretrain.guards.guard_history import GuardHistory


@dataclass(frozen=True)
class ResumeState:
    """Optimizer steps, the position in the stream, and what else a checkpoint stores of a run.

    replaced_tokens: tokens that stood in for damaged ones.
    init: the digest of the weights that the run began with; None if they were random.
    history: what the guards know of the steps so far.
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
