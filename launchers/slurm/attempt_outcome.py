"""Detect what one launch attempt wrote to the run folder."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from data_prep.reading import read_json
from pretrain.run import RunFolder, State
from pretrain.run.folder import Status

_END_SECONDS = 30.0  # for ranks that outlive srun


@dataclass(frozen=True)
class Refusal:
    """Reason for ranks that exit before they hold the run folder, as written by `pretrain.run.folder.refuse`."""

    reason: str
    retry: bool


class Witness:
    """Observer of one attempt. Create it before the attempt starts.

    Args:
        refusal: file for ranks that may not write status.json (pretrain.run.folder.refuse).
    """

    def __init__(self, run: RunFolder, refusal: Path):
        self._run, self._refusal = run, refusal
        refusal.unlink(missing_ok=True)
        self._before = run.status_time()
        self.state: State | None = None
        """Final state of the run, set by `seconds_over`."""
        self.over_since: float | None = None
        """Time when the run was first seen to be over, by time.monotonic."""

    def seconds_over(self) -> float:
        """Seconds since the status said that the run is over; 0 during the run. srun may still be running."""
        now = time.monotonic()
        if self.over_since is None and (status := self._own()) and status.is_over:
            self.state, self.over_since = status.state, now
        return 0.0 if self.over_since is None else now - self.over_since

    def last_words(self, wait: bool) -> Status | None:
        """Final status of the attempt; None if it never started (see `why_not` for the reason).

        Args:
            wait: wait for ranks that are about to exit.
        """
        deadline = time.monotonic() + (_END_SECONDS if wait else 0.0)
        while (status := self._own()) and not status.is_over and self._run.is_held():
            if time.monotonic() > deadline:
                return Status("failed", status.step, status.total_steps, "its processes do not end", "", time.time())
            time.sleep(0.2)
        return self._run.read_status() if status else None

    def why_not(self, code: int | None) -> tuple[str, bool]:
        """(reason why the attempt never started, whether to retry)."""
        try:
            said: Refusal = read_json(self._refusal, Refusal)
            return said.reason, said.retry
        except UserError:
            return f"training did not start (srun exit code {code})", True

    def _own(self) -> Status | None:
        if self._run.status_time() == self._before or self._refusal.exists():  # another run may have written it
            return None
        try:
            return self._run.recorded_status()
        except UserError:
            return None


def host_of(holder: str, job_id: int) -> str | None:
    """The host of a lock's holder (RunFolder.holder), if the holder belongs to this job."""
    match = re.fullmatch(rf"process \d+ on (\S+), Slurm job {job_id}", holder)
    return match[1] if match else None
