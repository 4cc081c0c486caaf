"""A profile of some steps: a trace for each rank, for https://ui.perfetto.dev, and a table of time by part."""

import itertools
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from pretrain.config.training import ProfileConfig
from pretrain.guards.pulse import PHASES, Phase, Pulse

_NAMES: dict[Phase, str] = {"collective": "counts", "step": "optimizer"}  # where a part is not called as its phase
_NOTE = (
    "data: waiting for the batch. counts: the first collective, in which fast ranks wait for slow ones. reduction:\n"
    "gradients over all ranks; with zero.stage 0, 2, 3 and offloading it is a part of backward. journal: reading late\n"
    "values back, on a GPU waiting for it. CPU: of all threads. The profiler itself takes time, in small parts most."
)


@dataclass(frozen=True)
class Spent:
    """What a part took: seconds that passed, seconds of all CPU threads, and seconds of the device's main stream."""

    seconds: float
    cpu: float
    device: float | None


@dataclass(frozen=True)
class _Stamp:
    """The beginning of a phase."""

    phase: Phase
    seconds: float
    cpu: float
    event: torch.cuda.Event | None


class Profile:
    """Records the wanted steps, and listens to the pulse meanwhile; outside of them it does nothing.

    Args:
        wanted: which steps; None: no profile.
        folder: where to write.
        pulse: says where training is.
        device: of this rank.
        steps_done: training goes on after them; rank 0 says so if the wanted steps are among them.
    """

    def __init__(
        self, wanted: ProfileConfig | None, folder: Path, pulse: Pulse, device: torch.device, steps_done: int
    ) -> None:
        self._first, self._last = wanted.steps if wanted else (0, 0)
        self._folder, self._pulse, self._cuda = folder, pulse, device.type == "cuda"
        self._profiler: torch.profiler.profile | None = None
        self._range: torch.profiler.record_function | None = None
        self._stamps: list[_Stamp] = []
        self._steps: list[int] = []
        if wanted and steps_done >= self._last:
            _say(f"train.profile: steps {self._first} to {self._last} are past, so that nothing is profiled")

    def before(self, step: int) -> bool:
        """Begin if the step is wanted; whether that took time."""
        if self._profiler or not self._first <= step <= self._last:
            return False
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or PyTorch prints its own beginning and end to the terminal
        self._stamps, self._steps = [], []
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()
        self._pulse.listener = self._enter
        return True

    def after(self, step: int) -> bool:
        """End after the last one of the wanted steps; whether that took time."""
        if not self._profiler:
            return False
        self._steps.append(step)
        if step < self._last:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Write what there is of a profile that is going on."""
        if not self._profiler:
            return
        self._enter("start")  # the end of the last part
        self._leave()
        self._pulse.listener = None
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        if not self._steps:
            return
        try:
            self._write(profiler)
        except (OSError, RuntimeError) as error:  # a picture is no reason to fail a run
            print(f"warning: {self._folder} was not written: {error}", file=sys.stderr, flush=True)

    def _enter(self, phase: Phase) -> None:
        self._leave()
        event = None
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._stamps.append(_Stamp(phase, time.perf_counter(), time.process_time(), event))
        self._range = torch.profiler.record_function(_NAMES.get(phase, phase))
        self._range.__enter__()

    def _leave(self) -> None:
        if self._range:
            self._range.__exit__(None, None, None)
            self._range = None

    def _write(self, profiler: torch.profiler.profile) -> None:
        self._folder.mkdir(exist_ok=True)
        name, rank = f"steps-{self._steps[0]}-{self._steps[-1]}", dist.get_rank()
        profiler.export_chrome_trace(str(self._folder / f"{name}-rank-{rank:05d}.json.gz"))
        if rank == 0:
            table = table_of(spent_by_phase(self._stamps), self._steps)
            (self._folder / f"{name}.txt").write_text(f"{table}\n")
            _say(table)


def spent_by_phase(stamps: Sequence[_Stamp]) -> dict[Phase, Spent]:
    """What each phase took in all, the last stamp being the end; waits for the device."""
    found: dict[Phase, list[Spent]] = defaultdict(list)
    for start, end in itertools.pairwise(stamps):
        device = None
        if start.event and end.event:
            end.event.synchronize()
            device = start.event.elapsed_time(end.event) / 1000
        found[start.phase].append(Spent(end.seconds - start.seconds, end.cpu - start.cpu, device))
    return {phase: _sum(found[phase]) for phase in PHASES if phase in found}


def table_of(spent: dict[Phase, Spent], steps: Sequence[int]) -> str:
    """Milliseconds a step by part, for people."""
    whole = _sum([*spent.values()])
    lines = [
        f"steps {steps[0]} to {steps[-1]} on rank 0, milliseconds a step",
        f"{'':12}{'time':>10}{'share':>8}{'CPU':>10}{'device':>10}",
    ]
    for name, one in [*((_NAMES.get(phase, phase), one) for phase, one in spent.items()), ("all", whole)]:
        device = "-" if one.device is None else _milliseconds(one.device, steps)
        times = f"{_milliseconds(one.seconds, steps):>10}{one.seconds / whole.seconds:>8.1%}"
        lines.append(f"{name:12}{times}{_milliseconds(one.cpu, steps):>10}{device:>10}")
    return "\n".join([*lines, _NOTE])


def _sum(parts: Sequence[Spent]) -> Spent:
    devices = [part.device for part in parts if part.device is not None]
    return Spent(
        sum(part.seconds for part in parts), sum(part.cpu for part in parts), sum(devices) if devices else None
    )


def _milliseconds(seconds: float, steps: Sequence[int]) -> str:
    return f"{1000 * seconds / len(steps):.2f}"


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)
