"""Detect slow ranks, waits for data, and a GPU that waits for the host, over many steps."""

from collections import deque
from collections.abc import Sequence
from statistics import median

_STEPS = 50  # over which times are compared
_FIRST_STEPS = 10  # of a process. They plan the first window of the data, and waiting for it is normal
_LEAST_SECONDS = 0.001  # of a step; less is noise
_MOSTLY = 0.9  # of the steps; a GPU catches up after an evaluation or a checkpoint too


def slow_ranks(times: Sequence[Sequence[float]], factor: float) -> dict[int, tuple[float, float]]:
    """The slow ranks, each with its median time and the median of the other ranks, in seconds per step.

    Args:
        times: for each step, the seconds that each rank computed before it first waited for other ranks.
        factor: a rank is slow if its time is more than `factor` times the median of the others.
    """
    medians = [median(rank) for rank in zip(*times, strict=True)]
    slow = {}
    for rank, own in enumerate(medians):
        others = median([*medians[:rank], *medians[rank + 1 :]] or [own])
        if own > factor * others and own - others > _LEAST_SECONDS:
            slow[rank] = own, others
    return slow


class StepTimes:
    """The times of the latest steps. Each problem gives one warning, and a new one only if it ends and returns.

    Args:
        hosts: the host of each rank.
        slow_factor, data_wait: guard.slow_factor and guard.data_wait; 0 disables the check.
    """

    def __init__(self, hosts: Sequence[str], slow_factor: float, data_wait: float):
        self._hosts, self._factor, self._share = hosts, slow_factor, data_wait
        self._times: deque[Sequence[float]] = deque(maxlen=_STEPS)
        self._waits: deque[tuple[float, float, bool]] = deque(maxlen=_STEPS)
        self._steps, self._slow, self._waiting, self._advised = 0, set[int](), False, False

    def record(self, compute_seconds: Sequence[float], waited: float, seconds: float, host_behind: bool) -> list[str]:
        """Add the times of a step: of each rank, and of this rank's wait for data, out of `seconds`.

        `host_behind`: see StepResult.

        Returns:
            Warnings.
        """
        self._times.append(compute_seconds)
        self._steps += 1
        if self._steps > _FIRST_STEPS:
            self._waits.append((waited, seconds, host_behind))
        return [] if self._steps % _STEPS else [*self._slow_warnings(), *self._wait_warnings()]

    def _slow_warnings(self) -> list[str]:
        slow = slow_ranks(self._times, self._factor) if self._factor and len(self._hosts) > 1 else {}
        new, self._slow = [rank for rank in slow if rank not in self._slow], set(slow)
        return [
            f"rank {rank} (on {self._hosts[rank]}) is slow, and all others wait for it: it needs {slow[rank][0]:.3g} s "
            f"a step for data and forward pass, the others {slow[rank][1]:.3g} s (median of {_STEPS} steps); look for "
            "another process, heat or a slow disk there"
            for rank in new
        ]

    def _wait_warnings(self) -> list[str]:
        waited, seconds, behind = map(sum, zip(*self._waits, strict=True))
        steps, before = len(self._waits), self._waiting
        self._waiting = bool(self._share) and waited > self._share * seconds
        if self._waiting and not before:
            return [
                f"{waited / seconds:.0%} of the last {steps} steps was waiting for data (speed/data_wait); put the "
                "data on a faster disk, lower data.window_blocks, or leave more cores to each process"
            ]
        if self._advised or behind < _MOSTLY * _STEPS or waited > (1 - _MOSTLY) * seconds:
            return []
        self._advised = True
        return [
            f"the GPU waits for the host, which takes {1e3 * seconds / steps:.0f} ms to start the kernels of a step; "
            "more rows take about as long: raise train.micro_batch_size if a step has several passes, else "
            "train.global_batch_size, unless the text is short"
        ]
