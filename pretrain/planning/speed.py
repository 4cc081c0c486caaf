"""Estimate the duration of a run from the measured speed of another run, a given speed, or the GPU's peak."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from pretrain.run import RunFolder, read_environment, read_journal

_SETTLING = 10  # the first steps are skipped: they fill caches and compile kernels
_LATEST = 1000  # steps that the median covers
_ASSUMED_MFU = (0.2, 0.3, 0.4, 0.5)


@dataclass(frozen=True)
class Rate:
    """A speed: TFLOP/s of each GPU, or real tokens a second of all GPUs. source: a description of its origin."""

    source: str
    tflops: float | None = None
    tokens_per_second: float | None = None

    def seconds(self, tokens: float, flops: float | None, processes: int) -> float:
        """Seconds that steps with these tokens and operations take.

        Raises:
            UserError: if the operations are needed and not known.
        """
        if self.tflops is None:
            return tokens / (self.tokens_per_second or 1)
        if flops is None:
            raise UserError("The operations of a model of arch auto are not known. Give --tokens-per-second.")
        return flops / (self.tflops * 1e12 * processes)


@dataclass(frozen=True)
class RunTime:
    """The time of all training steps, without evaluation, checkpoints and the start.

    Attributes:
        source: origin of the speed. assumed: whether the speed was neither measured nor given.
        tokens_per_second: of all GPUs together.
    """

    source: str
    assumed: bool
    tokens_per_second: float
    seconds: float
    gpu_hours: float


def run_times(
    tokens: float, flops: float | None, processes: int, rate: Rate | None, peak: int | None
) -> tuple[RunTime, ...]:
    """The time of a run at a rate, or without one at several shares of the GPU's `peak` in TFLOP/s; empty without both.

    Args:
        tokens, flops: of all steps; flops: None if not known.

    Raises:
        UserError: if the model's operations are needed and not known.
    """
    rates = [rate] if rate else []
    if rate is None and peak and flops:
        rates = [Rate(f"if {mfu:.0%} of {peak} TFLOP/s", tflops=mfu * peak) for mfu in _ASSUMED_MFU]
    times = [(speed.source, speed.seconds(tokens, flops, processes)) for speed in rates]
    return tuple(
        RunTime(source, rate is None, tokens / seconds, seconds, processes * seconds / 3600)
        for source, seconds in times
    )


def measured_rate(run: Path) -> Rate:
    """The median speed of each GPU, or process, in a run's last steps.

    Raises:
        UserError: if no step has a speed.
    """
    folder = RunFolder(run)
    try:
        entries = read_journal(folder.journal)
    except OSError as error:
        raise UserError(f"Cannot read {folder.journal} ({error.strerror}). Name a run folder with --from.") from None
    speeds = [entry.metrics["speed/tflops"] for entry in entries[_SETTLING:] if "speed/tflops" in entry.metrics]
    if not speeds:
        raise UserError(
            f"{run} has no measured speed (speed/tflops) after step {_SETTLING}. Train it for more steps, or give "
            "--tokens-per-second."
        )
    latest = speeds[-_LATEST:]
    return Rate(f"median of {len(latest)} steps of {run}{_devices(folder)}", tflops=statistics.median(latest))


def _devices(folder: RunFolder) -> str:
    """The processes and GPUs in environment.json: ", on 8 processes (NVIDIA H100)"; empty if not known."""
    values = read_environment(folder.environment) or {}
    if "hosts" not in values or "processes" not in values:
        return ""
    names = {gpu["name"] for host in values["hosts"] for gpu in host.get("gpus", []) if "name" in gpu}
    count = values["processes"]
    return f", on {count} process{'es' if count > 1 else ''} ({', '.join(sorted(names)) or 'no GPU'})"
