"""Sums and output of a training step: named fields, packed to vectors for the all-reduce."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import NamedTuple

from torch import Tensor


class LossSums(NamedTuple):
    """Sums of one objective over its predictions.

    cross_entropy: weighted. correct: right predictions. weights: equals `predictions` where all count the same.
    """

    cross_entropy: float
    correct: float
    predictions: float
    weights: float


@dataclass(frozen=True)
class StepSums:
    """Sums over the micro-batches of a rank or, after one all-reduce of the packed vector, of all ranks.

    tokens: real tokens, without padding.
    replaced: tokens that replaced damaged tokens.
    checksum: of the batches.
    flops: operations, without the operations of predictions.
    stop: ranks that want to stop.
    written: ranks that have written their part of the checkpoint in flight.
    save_due: 1 if a checkpoint is due by time.
    predictions: of each objective, predicted positions. weights: the sums of their weights.
    compute_seconds: of each rank, seconds that it worked before it first waited for the others.
    """

    tokens: float
    replaced: float
    checksum: float
    flops: float
    stop: float = 0.0
    written: float = 0.0
    save_due: float = 0.0
    predictions: tuple[float, ...] = field(default=(), kw_only=True)
    weights: tuple[float, ...] = field(default=(), kw_only=True)
    compute_seconds: tuple[float, ...] = field(default=(), kw_only=True)

    def pack(self) -> list[float]:
        """All numbers in the order of the fields."""
        *sums, predictions, weights, compute_seconds = astuple(self)
        return [*sums, *predictions, *weights, *compute_seconds]

    @classmethod
    def packed_weights(cls, packed: Tensor, objectives: int) -> Tensor:
        """The weights [objectives] in a packed vector."""
        return packed[_FIXED + objectives : _FIXED + 2 * objectives]

    @classmethod
    def unpack(cls, values: Sequence[float], objectives: int) -> "StepSums":
        """The reverse of `pack`."""
        rest = tuple(values[_FIXED:])
        predictions, weights = rest[:objectives], rest[objectives : 2 * objectives]
        seconds = rest[2 * objectives :]
        return cls(*values[:_FIXED], predictions=predictions, weights=weights, compute_seconds=seconds)


_FIXED = len(fields(StepSums)) - 3  # numbers that are there for any number of objectives and ranks


@dataclass(frozen=True)
class StepOutput:
    """The output of an engine step, summed over all ranks.

    losses: of each objective.
    grad_norm: before clipping.
    skipped: 1 if loss or gradients were not finite, so the optimizer skipped the step.
    sums: of the batches of all ranks.
    """

    losses: tuple[LossSums, ...]
    grad_norm: float
    skipped: float
    sums: StepSums

    @classmethod
    def unpack(cls, values: Sequence[float], objectives: int) -> "StepOutput":
        """Unpack a vector of a step: the numbers of this output, then the packed sums."""
        grad_norm, skipped, *packed = values[2 * objectives :]
        sums = StepSums.unpack(packed, objectives)
        losses = map(LossSums, values[:objectives], values[objectives:], sums.predictions, sums.weights)
        return cls(tuple(losses), grad_norm, skipped, sums)
