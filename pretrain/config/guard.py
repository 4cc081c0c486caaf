"""Config section `guard`: steps that are not finite, loss spikes, hangs, slow ranks, differing replicas."""

from pydantic import Field, model_validator

from pretrain.config.section import Section


class GuardConfig(Section):
    dry_run: bool = Field(True, description="a trial step, discarded, before the first one: memory, compilation")
    max_skipped: int = Field(5, ge=1, description="steps skipped in a row, as they are not finite, that end the run")
    spike_threshold: float = Field(
        6.0, ge=0, description="deviations above the median of recent losses that make a spike; 0: do not look"
    )
    spike_window: int = Field(128, ge=8, description="recent losses that a new one is compared with")
    rollback: bool = Field(False, description="go back to the checkpoint before a spike, and leave its batches out")
    spike_steps: int = Field(10, ge=1, description="steps in a row above the threshold before a rollback")
    skip_steps: int = Field(100, ge=0, description="steps whose batches are left out after the spike's first one")
    max_rollbacks: int = Field(3, ge=1, description="rollbacks of a run; later spikes are only told")
    hang_seconds: float = Field(
        600.0, ge=0, description="without progress for so long, the run ends; 0: never. Longer at the start"
    )
    slow_factor: float = Field(1.5, ge=0, description="times the others' own time that makes a rank slow; 0: off")
    replica_check_steps: int = Field(1000, ge=0, description="steps between comparisons of the ranks' weights; 0: off")
    data_wait: float = Field(0.1, ge=0, le=1, description="share of waiting for data that is told; 0: never")

    @model_validator(mode="after")
    def _makes_sense(self) -> "GuardConfig":
        if self.rollback and not self.spike_threshold:
            raise ValueError("rollback needs spikes to be looked for; set guard.spike_threshold above 0")
        if 0 < self.slow_factor <= 1:
            raise ValueError(
                f"slow_factor {self.slow_factor:g} would make every rank slow; write more than 1, or 0 for none"
            )
        return self
