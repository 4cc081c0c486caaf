"""Estimate the duration of a run from the measured speed of another run, or from a given speed."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.errors import UserError
from pretrain.model import peak_tflops
from pretrain.run import JournalReader, RunFolder

_SETTLING = 10  # the first steps are skipped: they fill caches and compile kernels
_LATEST = 1000  # steps that the median covers


@dataclass(frozen=True)
class RunTime:
    """The time of all training steps, without evaluation, checkpoints and the start.

    Attributes:
        source: origin of the speed.
        tokens_per_second: of all GPUs together.
    """

    source: str
    tokens_per_second: float
    seconds: float
    gpu_hours: float


@dataclass(frozen=True)
class Rate:
    """A speed: TFLOP/s of each GPU, or real tokens a second of all GPUs. source: a description of its origin."""

    source: str
    tflops: float | None = None
    tokens_per_second: float | None = None

    def time(self, tokens: float, flops: float | None, processes: int) -> RunTime:
        """The time of steps with these tokens and operations.

        Raises UserError if the operations are needed and not known.
        """
        if self.tflops is None:
            seconds = tokens / (self.tokens_per_second or 1)
        elif flops is None:
            raise UserError("The operations of a model of arch auto are not known. Give --tokens-per-second.")
        else:
            seconds = flops / (self.tflops * 1e12 * processes)
        return RunTime(self.source, tokens / seconds, seconds, processes * seconds / 3600)


def other_device(run: Path, gpu: str | None, for_gpus: bool) -> str | None:
    """The device that trained a run, "a CPU" or the name of a GPU, if it is another than the planned one.

    None if both are the same, or not known; GPUs with the same peak count as the same. gpu: the planned one, if named.
    """
    hosts = (RunFolder(run).read_environment() or {}).get("hosts", [])
    names = [known["name"] for host in hosts for known in host.get("gpus", ()) if "name" in known]
    if not names:
        return "a CPU" if hosts and for_gpus else None
    return names[0] if gpu and peak_tflops(gpu) != peak_tflops(names[0]) else None


def measured_rate(run: Path) -> Rate:
    """The median speed of each GPU, or process, in a run's last steps.

    Raises UserError if no step has a speed.
    """
    folder = RunFolder(run)
    try:
        entries = JournalReader(folder.journal).entries()
    except OSError as error:
        raise UserError(f"Cannot read {folder.journal} ({error.strerror}). Name a run folder with --from.") from None
    speeds = [entry.metrics["speed/tflops"] for entry in entries[_SETTLING:] if "speed/tflops" in entry.metrics]
    if not speeds:
        raise UserError(
            f"{run} has no measured speed (speed/tflops) after step {_SETTLING}. Train it for more steps, or give "
            "--tokens-per-second."
        )
    latest = speeds[-_LATEST:]
    return Rate(f"median of {len(latest)} steps of {run}", tflops=statistics.median(latest))
