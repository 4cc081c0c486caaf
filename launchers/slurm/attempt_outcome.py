"""What an attempt leaves in the run folder, told apart from what was there before it."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from data_prep.reading import read_json
from pretrain.run import RunFolder, State
from pretrain.run.folder import Status

_END_SECONDS = 30.0  # for ranks that srun has let go of


@dataclass(frozen=True)
class Refusal:
    """Why ranks end before they hold the run folder, as `pretrain.run.folder.refuse` writes it."""

    reason: str
    retry: bool


class Witness:
    """Watches one attempt; to be made before it starts.

    Args:
        refusal: where ranks that may not speak in status.json say why they end (pretrain.run.folder.refuse).
    """

    def __init__(self, run: RunFolder, refusal: Path):
        self._run, self._refusal = run, refusal
        refusal.unlink(missing_ok=True)
        self._before = run.status_time()
        self.state: State | None = None
        """How the run has ended, as far as `seconds_over` has seen it."""
        self.over_since: float | None = None
        """Since when, on the clock of time.monotonic."""

    def seconds_over(self) -> float:
        """How long the run has been over, by its status, though srun may not have ended; 0 while it goes on."""
        now = time.monotonic()
        if self.over_since is None and (status := self._own()) and status.is_over:
            self.state, self.over_since = status.state, now
        return 0.0 if self.over_since is None else now - self.over_since

    def last_words(self, wait: bool) -> Status | None:
        """How the attempt ended; None if it never began, for which `why_not` has the reason.

        Args:
            wait: for ranks that are about to end.
        """
        deadline = time.monotonic() + (_END_SECONDS if wait else 0.0)
        while (status := self._own()) and not status.is_over and self._run.is_held():
            if time.monotonic() > deadline:
                return Status("failed", status.step, status.total_steps, "its processes do not end", "", time.time())
            time.sleep(0.2)
        return self._run.read_status() if status else None

    def why_not(self, code: int | None) -> tuple[str, bool]:
        """Why the attempt never began, and whether it is worth another try."""
        try:
            said: Refusal = read_json(self._refusal, Refusal)
            return said.reason, said.retry
        except UserError:
            return f"training did not start (srun exit code {code})", True

    def _own(self) -> Status | None:
        if self._run.status_time() == self._before or self._refusal.exists():  # then another run may have written it
            return None
        try:
            return self._run.recorded_status()
        except UserError:
            return None


def host_of(holder: str, job_id: int) -> str | None:
    """The host of a lock's holder (RunFolder.holder), if this job's it is."""
    match = re.fullmatch(rf"process \d+ on (\S+), Slurm job {job_id}", holder)
    return match[1] if match else None
