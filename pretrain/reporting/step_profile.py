"""Profile chosen steps with torch.profiler: a trace of each rank for https://ui.perfetto.dev, and a table of times."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import torch

from pretrain.run import PhaseMarker, RunPhase

_NAMES: dict[RunPhase, str] = {"collective": "counts", "step": "optimizer"}  # parts whose name differs from their phase
_ROWS = 30  # of the table
_NAME_WIDTH = 40


class Profile:
    """Profiles the wanted steps, and names their parts by the phases that the marker reports.

    Args:
        wanted: the steps; None for no profile.
        folder: the folder to write.
        marker: reports the phases of a step.
        steps_done: training starts after this step. If the wanted steps are past, rank 0 prints a message.
        rank: of this process.
        finish: waits for collectives in flight. A collective that began under the profiler and ends after it writes to
            memory that the profiler has released, which kills the process.
    """

    def __init__(
        self,
        wanted: tuple[int, int] | None,
        folder: Path,
        marker: PhaseMarker,
        steps_done: int,
        rank: int,
        finish: Callable[[], None],
    ) -> None:
        self._first, self._last = wanted or (0, 0)
        self._folder, self._marker, self._rank, self._finish = folder, marker, rank, finish
        self._profiler: torch.profiler.profile | None = None
        self._phase = contextlib.ExitStack()
        self._steps: list[int] = []
        if wanted and steps_done >= self._last:
            self._say(f"train.profile: steps {self._first} to {self._last} are past, so that nothing is profiled")

    def before(self, step: int) -> bool:
        """Start the profiler if the step is wanted. Returns whether it started, which takes time."""
        if self._profiler or not self._first <= step <= self._last:
            return False
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences PyTorch's own messages on the terminal
        self._steps = []
        self._profiler = torch.profiler.profile()  # of the processor, and of the GPU if there is one
        self._profiler.start()
        self._marker.listener = self._enter
        return True

    def after(self, step: int) -> bool:
        """Write the profile after the last wanted step. Returns whether it wrote, which takes time."""
        if not self._profiler:
            return False
        self._steps.append(step)
        if step < self._last:
            return False
        self._finish()
        self.close()
        return True

    def close(self) -> None:
        """Write the steps profiled so far, if the profiler is running."""
        if not self._profiler:
            return
        self._phase.close()
        self._marker.listener = None
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        try:
            if self._steps:
                self._write(profiler)
        except (OSError, RuntimeError) as error:  # a run does not fail because of its profile
            print(f"warning: {self._folder} was not written: {error}", file=sys.stderr, flush=True)

    def _enter(self, phase: RunPhase) -> None:
        self._phase.close()
        self._phase.enter_context(torch.profiler.record_function(_NAMES.get(phase, phase)))

    def _write(self, profiler: torch.profiler.profile) -> None:
        self._folder.mkdir(exist_ok=True)
        name = f"steps-{self._steps[0]}-{self._steps[-1]}"
        profiler.export_chrome_trace(str(self._folder / f"{name}-rank-{self._rank:05d}.json.gz"))
        if self._rank == 0:
            averages = profiler.key_averages()
            table = averages.table("cpu_time_total", _ROWS, max_name_column_width=_NAME_WIDTH)
            text = f"steps {self._steps[0]} to {self._steps[-1]} on rank 0\n{_phases(averages)}\n{table}"
            (self._folder / f"{name}.txt").write_text(f"{text}\n")
            self._say(text)

    def _say(self, text: str) -> None:
        if self._rank == 0:
            print(text, file=sys.stderr, flush=True)


def _phases(averages: Iterable[Any]) -> str:
    """The elapsed time of each part of the steps, in milliseconds. The table of torch leaves out what is short."""
    total = {event.key: event.cpu_time_total / 1e3 for event in averages}
    names = [_NAMES.get(phase, phase) for phase in get_args(RunPhase)]
    return "\n".join(f"{name:<12}{total[name]:12,.1f} ms" for name in names if name in total)
