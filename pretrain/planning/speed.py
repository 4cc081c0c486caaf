"""How fast a run will be: by a rate that was measured in another run, or one that is given."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from pretrain.planning.run_plan import RunPlan
from pretrain.run import RunFolder, read_environment
from pretrain.run.journal import read_journal

_SETTLING = 10  # first steps of a run, in which caches fill and kernels are compiled
_LATEST = 1000  # steps that count
_ASSUMED_MFU = (0.2, 0.3, 0.4, 0.5)


@dataclass(frozen=True)
class Rate:
    """Model operations a second of each GPU (10**12), or real tokens a second of all GPUs together; and whence."""

    source: str
    tflops: float | None = None
    tokens_per_second: float | None = None

    def seconds(self, plan: RunPlan) -> float:
        """Of all training steps.

        Raises:
            UserError: if the model's operations are needed and not known.
        """
        if self.tokens_per_second is not None:
            return plan.tokens / self.tokens_per_second
        if plan.flops is None:
            raise UserError("the operations of a model of arch auto are not known; give --tokens-per-second")
        assert self.tflops is not None
        return plan.flops / (self.tflops * 1e12 * plan.processes)


@dataclass(frozen=True)
class RunTime:
    """The time that all training steps take; evaluation, checkpoints and the start come on top.

    Attributes:
        source: of the speed. assumed: whether it was neither measured nor given.
        tokens_per_second: of all GPUs together. cost: None without a price.
    """

    source: str
    assumed: bool
    tokens_per_second: float
    seconds: float
    gpu_hours: float
    cost: float | None


def run_times(plan: RunPlan, rate: Rate | None, peak: int | None, price: float | None) -> list[RunTime]:
    """The time at a rate, or without one at several shares of the GPU's `peak` in TFLOP/s; none if both are unknown.

    Raises:
        UserError: if the model's operations are needed and not known.
    """
    rates = [rate] if rate else []
    if rate is None and peak and plan.flops:
        rates = [Rate(f"if {mfu:.0%} of {peak} TFLOP/s", tflops=mfu * peak) for mfu in _ASSUMED_MFU]
    times = []
    for one in rates:
        seconds = one.seconds(plan)
        hours = plan.processes * seconds / 3600
        cost = None if price is None else price * hours
        times.append(RunTime(one.source, rate is None, plan.tokens / seconds, seconds, hours, cost))
    return times


def measured(run: Path) -> Rate:
    """The median rate of each GPU, or process, of a run.

    Raises:
        UserError: if it has no steps with a speed.
    """
    folder = RunFolder(run)
    try:
        entries = read_journal(folder.journal)
    except OSError as error:
        raise UserError(f"{folder.journal}: cannot be read ({error.strerror}); --from wants a run folder") from None
    found = [entry.metrics["speed/tflops"] for entry in entries[_SETTLING:] if "speed/tflops" in entry.metrics]
    if not found:
        raise UserError(
            f"{run} has no speed of steps after the {_SETTLING}th (model operations a second); train for longer, or "
            "give --tokens-per-second"
        )
    latest = found[-_LATEST:]
    what = f"median of {len(latest)} steps of {run}{_devices(folder)}"
    return Rate(what, tflops=statistics.median(latest))


def _devices(folder: RunFolder) -> str:
    """ ", on 8 processes (NVIDIA H100)", as far as environment.json says so."""
    values = read_environment(folder.environment) or {}
    if "hosts" not in values or "processes" not in values:
        return ""
    names = {gpu["name"] for host in values["hosts"] for gpu in host.get("gpus", []) if "name" in gpu}
    count = values["processes"]
    return f", on {count} process{'es' if count > 1 else ''} ({', '.join(sorted(names)) or 'no GPU'})"
