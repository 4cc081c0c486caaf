"""A config as a whole, and what its sections ask of each other."""

import math
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from pretrain.config.cluster import ClusterConfig
from pretrain.config.data import DataConfig
from pretrain.config.guard import GuardConfig
from pretrain.config.masking import MaskingConfig
from pretrain.config.model import ModelConfig
from pretrain.config.run import CheckpointConfig, EvalConfig, RunConfig, TrackConfig
from pretrain.config.section import Section
from pretrain.config.training import OptimConfig, ScheduleConfig, StageConfig, StageSettings, TrainConfig, ZeroConfig


class Config(Section):
    run: RunConfig
    data: DataConfig
    objective: Literal["mlm", "clm", "repair"] = Field("mlm", description="what the model learns to predict")
    masking: MaskingConfig = MaskingConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    train: TrainConfig
    curriculum: list[StageConfig] = Field(default_factory=list, description="later stages: longer rows, other batches")
    zero: ZeroConfig = ZeroConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    guard: GuardConfig = GuardConfig()
    track: TrackConfig = TrackConfig()
    cluster: ClusterConfig = ClusterConfig()
    deepspeed: dict[str, Any] = Field(default_factory=dict, description="raw DeepSpeed keys, laid over ours")

    @property
    def stages(self) -> list[StageSettings]:
        """The stages of the run, the first as data: and train: say, the others with what they do not set filled in."""
        train = self.train
        found = [StageSettings(0, self.data.seq_len, train.global_batch_size, train.micro_batch_size)]
        for stage in self.curriculum:
            found.append(replace(found[-1], **stage.model_dump(exclude_none=True)))
        return found

    @property
    def causal(self) -> bool:
        """Whether tokens are predicted, by the slot before them, from what precedes them alone."""
        return self.objective == "clm"

    @property
    def longest_row(self) -> int:
        """The largest sequence length of all stages."""
        return max(stage.seq_len for stage in self.stages)

    @model_validator(mode="after")
    def _cross_checks(self) -> "Config":
        for number, stage in enumerate(self.stages):
            place = stage_name(number)
            micro, batch = stage.micro_batch_size, stage.global_batch_size
            if micro and batch % micro:
                inherited = number and self.curriculum[number - 1].micro_batch_size is None
                raise ValueError(
                    f"{place}.global_batch_size ({batch}) must be a multiple of "
                    + ("the micro_batch_size" if inherited else f"{place}.micro_batch_size")
                    + f" ({micro}{' of the stage before' if inherited else ''})"
                )
            if number and stage.after_step <= self.stages[number - 1].after_step:
                raise ValueError(f"{place}.after_step ({stage.after_step}) must be larger than in the stage before")
        if self.objective == "repair":
            self._only_targets()
        if self.objective == "mlm":
            self._predicts()
        if self.masking.device == "gpu" and self.objective != "mlm":
            raise ValueError(f"masking.device gpu is for objective mlm, not {self.objective}")
        if self.causal and self.model.arch not in ("bert", "roberta"):
            raise ValueError(f"objective clm needs model.arch bert or roberta, not {self.model.arch}")
        if self.train.fused_kernels and self.model.arch == "auto":
            raise ValueError("train.fused_kernels is for the native encoder; set it to false with model.arch auto")
        if self.train.compile:
            self._compiles()
        if self.train.activation_checkpointing and self.model.arch == "auto":
            raise ValueError(
                "train.activation_checkpointing is for the native encoder; set it to false with model.arch auto"
            )
        if self.zero.stage == 0 and self.train.precision != "fp32":
            raise ValueError(
                f"zero.stage 0 is for train.precision fp32; write zero.stage 1 for {self.train.precision}, which sums "
                "gradients in fp32 and needs less memory"
            )
        if self.guard.rollback and self.checkpoint.keep < 2:
            raise ValueError(
                "guard.rollback needs a checkpoint from before the spike; set checkpoint.keep to 2 or more"
            )
        if self.model.max_positions and self.model.max_positions < self.longest_row:
            raise ValueError(
                f"model.max_positions ({self.model.max_positions}) must be at least the longest data.seq_len "
                f"({self.longest_row})"
            )
        return self

    def _compiles(self) -> None:
        if self.model.arch == "auto":
            raise ValueError("train.compile is for the native encoder; set it to false with model.arch auto")
        if self.zero.stage == 3:
            raise ValueError("train.compile is for zero.stage 0 to 2, whose weights stay in place; set one of the two")
        if self.train.fused_kernels:
            raise ValueError("train.compile makes kernels of its own; set it or train.fused_kernels to false")

    def _predicts(self) -> None:
        rate, shortest = self.masking.rate, min(stage.seq_len for stage in self.stages)
        least = rate if isinstance(rate, float) else min(rate.start, rate.end)
        if 2 * least * (shortest - 2) < 1:
            raise ValueError(
                f"masking.rate {least:g} is less than half a token of a row of {shortest} slots, so nothing would be "
                f"predicted; raise it to {math.ceil(500 / (shortest - 2)) / 1000:g} at least, or make rows longer"
            )

    def _only_targets(self) -> None:
        masking = self.masking
        for name in ("strategy", "replacement", "span", "ngram"):
            if getattr(masking, name) != MaskingConfig.model_fields[name].default:
                raise ValueError(
                    f"masking.{name} says which tokens to mask and how, and objective: repair masks all that the wrong "
                    "text has not; remove it"
                )


def stage_name(number: int) -> str:
    """Where the batch sizes of a stage stand in the config."""
    return f"curriculum.{number - 1}" if number else "train"
