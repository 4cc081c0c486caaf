"""What a run's guards remember: stored in each checkpoint, so that a resumed run decides as an unbroken one would."""

from dataclasses import asdict, dataclass
from typing import Any

from data_prep.reading import typed
from pretrain.data import MixturePosition


@dataclass(frozen=True)
class StreamPoint:
    """A step, and where its batch begins in the stream."""

    step: int
    position: MixturePosition


@dataclass(frozen=True)
class Rollback:
    """A spike that began at `spike`, the step `to` that the run went back to, and the rows it left out.

    Rows are counted over the whole stream; those from `first_row` up to and without `next_row` are left out.
    """

    spike: int
    to: int
    first_row: int
    next_row: int

    def __str__(self) -> str:
        return f"from the spike at step {self.spike} to step {self.to}, rows {self.first_row} to {self.next_row - 1}"


@dataclass(frozen=True)
class GuardHistory:
    """The steps so far.

    skipped: steps that were not finite. skipped_in_row: the latest of them, up to now.
    losses: the latest finite ones, of batches of `shape` (rows, sequence length).
    spike: the first of the latest steps that are all above the threshold, None if the last is not; and how many.
    rollbacks: in order.
    """

    skipped: int = 0
    skipped_in_row: tuple[StreamPoint, ...] = ()
    losses: tuple[float, ...] = ()
    shape: tuple[int, int] = (0, 0)
    spike: StreamPoint | None = None
    above: int = 0
    rollbacks: tuple[Rollback, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "GuardHistory":
        """What `to_json` gave, as JSON brings it back; raises ValueError for anything else."""
        found: GuardHistory = typed(cls, values)
        return found

    def __str__(self) -> str:
        """For people: "; 2 steps skipped; 1 rollback, the last one from ..."; empty if nothing happened."""
        said = [f"{self.skipped} {'step' if self.skipped == 1 else 'steps'} skipped"] if self.skipped else []
        if self.rollbacks:
            number = len(self.rollbacks)
            said.append(f"{number} rollback{'s' if number > 1 else ''}, the last one {self.rollbacks[-1]} left out")
        return "".join(f"; {text}" for text in said)
