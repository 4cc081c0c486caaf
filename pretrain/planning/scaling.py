"""Time of a data-parallel step: compute, communication that compute does not hide, optimizer.

Pure functions. Gradients are sent group by group while the backward pass computes the next group (Li et al., "PyTorch
distributed: experiences on accelerating data parallel training", 2020). Weights of a group are gathered before the
forward pass reaches it. The network serves one collective after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Transfer(NamedTuple):
    """A collective of one group.

    seconds: of the collective. share: part of a pass's compute before the gradients of the group are complete, counted
    from the group before; or the part that needs the gathered weights of the group.
    """

    seconds: float
    share: float


@dataclass(frozen=True)
class Compute:
    """Work of a rank in a step, in seconds.

    Attributes:
        passes: seconds of all forward and backward passes without communication.
        count: number of forward and backward passes (micro-batches).
    """

    passes: float
    count: int
    optimizer: float

    @property
    def forward(self) -> float:
        """Seconds of one forward pass: a third, as the backward pass has twice the operations."""
        return self.passes / self.count / 3

    @property
    def backward(self) -> float:
        """Seconds of one backward pass."""
        return 2 * self.forward


@dataclass(frozen=True)
class Communication:
    """Collectives of a step.

    Attributes:
        reduce: sums of gradients, as the backward pass completes them.
        gather: of updated weights, as the forward pass needs them.
        small: seconds of the all-reduces of a few numbers.
        overlap_reduce: sums run during the last backward pass. overlap_gather: gathers run during the first forward
            pass of the next step.
    """

    reduce: tuple[Transfer, ...]
    gather: tuple[Transfer, ...]
    small: float
    overlap_reduce: bool
    overlap_gather: bool


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by part; `reduce` and `gather` only as far as compute does not hide them."""

    compute: float
    reduce: float
    gather: float
    small: float
    optimizer: float

    @property
    def exposed(self) -> float:
        """Seconds of communication during which a rank waits."""
        return self.reduce + self.gather + self.small

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.compute + self.exposed + self.optimizer

    @property
    def efficiency(self) -> float:
        """Speed of a GPU as a share of one that only computes: at most 1."""
        return self.compute / self.seconds


def step_time(work: Compute, sent: Communication) -> StepTime:
    """The step of each rank, if all ranks are equally fast."""
    reduce = exposed_reduce(sent.reduce, work.backward) if sent.overlap_reduce else total(sent.reduce)
    gather = exposed_gather(sent.gather, work.forward) if sent.overlap_gather else total(sent.gather)
    return StepTime(work.passes, reduce, gather, sent.small, work.optimizer)


def total(transfers: Sequence[Transfer]) -> float:
    """Seconds of all collectives, one after the other."""
    return sum(transfer.seconds for transfer in transfers)


def exposed_reduce(transfers: Sequence[Transfer], backward: float) -> float:
    """Seconds that sums of gradients add to a backward pass of `backward` seconds."""
    clock = sending = 0.0  # when the backward pass and the network are free
    for transfer in transfers:
        clock += transfer.share * backward
        sending = max(sending, clock) + transfer.seconds
    return max(0.0, max(clock, sending) - _shares(transfers) * backward)


def exposed_gather(transfers: Sequence[Transfer], forward: float) -> float:
    """Seconds that gathers of weights add to a forward pass of `forward` seconds; both begin together."""
    clock = arrived = 0.0
    for transfer in transfers:
        arrived += transfer.seconds
        clock = max(clock, arrived) + transfer.share * forward
    return max(0.0, max(clock, total(transfers)) - _shares(transfers) * forward)


def _shares(transfers: Sequence[Transfer]) -> float:
    return sum(transfer.share for transfer in transfers)
