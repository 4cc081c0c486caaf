"""Sums and output of a training step: named fields, packed to vectors for the all-reduce."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class StepSums:
    """Sums over the micro-batches of a rank or, after one all-reduce of the packed vector, of all ranks.

    Where the device masks, it knows the predictions and the checksum, and they are 0 here until the vector is added up.

    predictions: predicted positions.
    tokens: real tokens, without padding.
    replaced: tokens that replaced damaged tokens.
    checksum: of the batches.
    flops: operations, without the operations of predictions.
    stop: ranks that want to stop.
    written: ranks that have written their part of the checkpoint in flight.
    save_due: 1 if a checkpoint is due by time.
    compute_seconds: of each rank, seconds that it worked before it first waited for the others.
    """

    PREDICTIONS: ClassVar[int] = 0  # place in the packed vector

    predictions: float
    tokens: float
    replaced: float
    checksum: float
    flops: float
    stop: float = 0.0
    written: float = 0.0
    save_due: float = 0.0
    compute_seconds: tuple[float, ...] = field(default=(), kw_only=True)

    def pack(self) -> list[float]:
        """All numbers in the order of the fields."""
        *sums, compute_seconds = astuple(self)
        return [*sums, *compute_seconds]

    @classmethod
    def add_from_device(cls, packed: Tensor, known: Tensor) -> None:
        """Add predictions and checksum [2] of batches that were masked on the device to a packed vector."""
        packed[cls.PREDICTIONS] += known[0]
        packed[_CHECKSUM] += known[1]

    @classmethod
    def unpack(cls, values: Sequence[float]) -> "StepSums":
        """The reverse of `pack`."""
        return cls(*values[:_FIXED], compute_seconds=tuple(values[_FIXED:]))


_CHECKSUM = 3  # place in the packed vector
_FIXED = len(fields(StepSums)) - 1  # numbers that are there for any number of ranks


@dataclass(frozen=True)
class StepOutput:
    """The output of an engine step, summed over all ranks.

    cross_entropy: of all predictions. correct: right predictions.
    grad_norm: before clipping. group_norms: norms of the parts of the model, if measured.
    skipped: 1 if loss or gradients were not finite, so the optimizer skipped the step.
    sums: of the batches of all ranks.
    """

    cross_entropy: float
    correct: float
    grad_norm: float
    skipped: float
    group_norms: tuple[float, ...]
    sums: StepSums

    @classmethod
    def unpack(cls, values: Sequence[float], ranks: int) -> "StepOutput":
        """Unpack a vector of a step: the numbers of this output, then the packed sums."""
        numbers = _FIXED + ranks  # of the sums
        cross_entropy, correct, grad_norm, skipped, *group_norms = values[:-numbers]
        return cls(cross_entropy, correct, grad_norm, skipped, tuple(group_norms), StepSums.unpack(values[-numbers:]))
