"""State of the guards. Each checkpoint stores it, so a resumed run decides like an uninterrupted run."""

from dataclasses import asdict, dataclass
from typing import Any

from data_prep.reading import typed
from pretrain.data import MixturePosition


@dataclass(frozen=True)
class StreamPoint:
    """A step, and the position in the stream where its batch begins."""

    step: int
    position: MixturePosition


@dataclass(frozen=True)
class Rollback:
    """A rollback from the spike that began at step `spike` to step `to`, and the rows that it left out.

    Rows are counted over the whole stream. The range is `first_row` (included) to `next_row` (excluded).
    """

    spike: int
    to: int
    first_row: int
    next_row: int

    def __str__(self) -> str:
        return f"from the spike at step {self.spike} to step {self.to}, rows {self.first_row} to {self.next_row - 1}"


@dataclass(frozen=True)
class GuardHistory:
    """Skipped steps, recent losses and rollbacks of a run.

    skipped: the number of skipped steps. skipped_in_row: the latest steps, if they were skipped.
    losses: the latest finite losses, of batches of `shape` (rows, sequence length).
    spike: the first step of the current spike; None if the last loss is below the threshold.
    above: the number of steps of the current spike.
    rollbacks: all rollbacks, oldest first.
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
        """The inverse of `to_json`; raises ValueError for other values."""
        found: GuardHistory = typed(cls, values)
        return found

    def __str__(self) -> str:
        """A text for messages: "; 2 steps skipped; 1 rollback, the last one from ..."; empty if nothing happened."""
        said = [f"{self.skipped} {'step' if self.skipped == 1 else 'steps'} skipped"] if self.skipped else []
        if self.rollbacks:
            number = len(self.rollbacks)
            said.append(f"{number} rollback{'s' if number > 1 else ''}, the last one {self.rollbacks[-1]} left out")
        return "".join(f"; {text}" for text in said)
