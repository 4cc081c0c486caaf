"""Records of the loop on rank 0: metrics, and the progress in status.json."""

import sys
import time
from collections.abc import Callable
from typing import Any

from data_prep.common.errors import UserError
from pretrain.guards import GuardHistory
from pretrain.run import RecordEntry, RunFolder

_STATUS_SECONDS = 5.0


class Recorder:
    """Records metrics on rank 0, and ends the run if they cannot be written.

    Args:
        report: called with a step, its metrics and, for a training step, its batch (journal.Entry).
        is_saving: whether a save is in progress. It may fill the disk for a while, so a failed write is no problem.
    """

    def __init__(self, report: RecordEntry, folder: RunFolder, rank: int, is_saving: Callable[[], bool]):
        self._report = report
        self._folder = folder
        self._is_rank_zero = rank == 0
        self._is_saving = is_saving
        self.problem: str | None = None

    def record(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None = None) -> None:
        """Record metrics of a step. A failed write becomes `problem`."""
        if not self._is_rank_zero:
            return
        try:
            self._report(step, metrics, batch)
        except OSError as error:
            if not self._is_saving():
                self.problem = f"{self._folder.journal} cannot be written ({error.strerror})"

    def check(self) -> None:
        """Raise UserError if a write has failed."""
        if self.problem:
            raise UserError(f"{self.problem}; make room, and run the same command again")


class StatusWriter:
    """Writes the progress of a run to status.json on rank 0, every five seconds."""

    def __init__(self, folder: RunFolder, total_steps: int, rank: int):
        self._folder = folder
        self._total_steps = total_steps
        self._is_rank_zero = rank == 0
        self._last = 0.0

    def write(self, step: int, phase: str, history: GuardHistory, problem: str | None) -> None:
        """Write the progress, if it is due.

        Args:
            phase: the name of the phase of the run, or "".
            problem: of the last checkpoint.
        """
        now = time.monotonic()
        if not self._is_rank_zero or now - self._last < _STATUS_SECONDS:
            return
        self._last = now
        said = (f", but {problem}", "make room, or repair the disk") if problem else ("", "none")
        reason = f"training{f', phase {phase}' if phase else ''}{history}{said[0]}"
        try:
            self._folder.progress(step, self._total_steps, reason, said[1])
        except OSError as error:
            print(f"warning: {self._folder.status} was not written ({error.strerror})", file=sys.stderr, flush=True)
