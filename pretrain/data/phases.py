"""Phases of a run: sequence length and batch shape by step."""

from collections.abc import Sequence
from dataclasses import dataclass

from data_prep.errors import UserError
from pretrain.config import Config


@dataclass(frozen=True)
class BatchShape:
    """Split of a global batch over processes: global rows = world_size * accumulation * micro."""

    world_size: int
    accumulation: int
    micro: int

    @property
    def rows(self) -> int:
        """Rows of the global batch."""
        return self.world_size * self.accumulation * self.micro

    @property
    def rank_rows(self) -> int:
        """Rows of one rank's share."""
        return self.accumulation * self.micro

    @classmethod
    def divide(
        cls, rows: int, micro: int | None, world_size: int, key: str = "train.global_batch_size"
    ) -> "BatchShape":
        """Split `rows` over `world_size` processes in micro-batches of `micro` rows (None: no accumulation).

        Raises:
            UserError: if the rows do not divide evenly; the message names the config key `key`.
        """
        if rows % world_size:
            raise UserError(
                f"{key} is {rows}, which {world_size} processes cannot share evenly; choose a multiple of {world_size}"
            )
        micro = min(micro or rows, rows // world_size)
        if rows % (world_size * micro):
            raise UserError(
                f"{key} ({rows}) is not a multiple of {world_size} processes times the "
                f"micro_batch_size ({micro}); change one of the two"
            )
        return cls(world_size, rows // (world_size * micro), micro)


@dataclass(frozen=True)
class BatchPhase:
    """The steps after `after_step`, up to the next phase: rows of `seq_len` slots, in batches of `shape`."""

    after_step: int
    seq_len: int
    shape: BatchShape


def stages_of(config: Config, world_size: int) -> tuple[BatchPhase, ...]:
    """The phases of a run in order, the first from step 0.

    Raises:
        UserError: if the batch of a phase does not divide over the processes.
    """
    return tuple(
        BatchPhase(
            stage.after_step,
            stage.seq_len,
            BatchShape.divide(stage.global_batch_size, stage.micro_batch_size, world_size, stage.key),
        )
        for stage in config.stages
    )


def stage_at(stages: Sequence[BatchPhase], steps_done: int) -> tuple[BatchPhase, BatchPhase | None]:
    """The phase of the step after `steps_done` steps, and the previous phase if it ended exactly there."""
    number = max(n for n, stage in enumerate(stages) if stage.after_step <= steps_done)
    ended = stages[number - 1] if number and stages[number].after_step == steps_done else None
    return stages[number], ended
