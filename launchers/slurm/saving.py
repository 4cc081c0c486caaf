"""How long a run took to save a checkpoint when Slurm was about to end its job, against the time that Slurm leaves."""

import math
from dataclasses import dataclass

_SHARE = 0.5
"""Of the time that Slurm leaves, which a checkpoint should not exceed: storage may be busier the next time."""


@dataclass(frozen=True)
class Saving:
    """One checkpoint on Slurm's warning.

    Args:
        seconds: from the warning to the end of the run with its checkpoint; without one, until Slurm ended the job.
        lead: seconds that the warning comes before the time limit (cluster.signal_seconds); None for SIGTERM, as at a
            preemption, after which the site decides how long it waits.
        is_saved: whether there was a checkpoint in time.
    """

    seconds: float
    lead: int | None
    is_saved: bool

    @property
    def wanted(self) -> int | None:
        """A lead that would be enough, in whole minutes; None if this one is, or none can be chosen."""
        if self.lead is None or (self.is_saved and self.seconds <= _SHARE * self.lead):
            return None
        return 60 * math.ceil(self.seconds / _SHARE / 60)

    @property
    def sentence(self) -> str:
        """What was measured, and what to do if it was too much."""
        said = f"{self.seconds:.1f} s from Slurm's warning to the checkpoint"
        if not self.is_saved:
            said = f"no checkpoint {self.seconds:.1f} s after Slurm's warning"
        if self.lead is not None:
            said += f"; the warning comes {self.lead} s before the time limit"
        if self.wanted is None:
            return said
        return (
            f"{said}, which is {'tight' if self.is_saved else 'too late'}: submit with --signal-seconds {self.wanted}"
        )
