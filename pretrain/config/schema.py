"""The whole config, and the checks across its sections."""

import math
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from pretrain.config.cluster import ClusterConfig
from pretrain.config.data import DataConfig, MaskingConfig
from pretrain.config.model import ModelConfig
from pretrain.config.objective import (
    OBJECTIVES,
    ObjectiveConfig,
    ObjectiveKind,
    ObjectiveName,
    ShareSchedule,
    View,
    block_rows,
)
from pretrain.config.run import CheckpointConfig, EvalConfig, GuardConfig, RunConfig, TrackConfig
from pretrain.config.section import Section
from pretrain.config.training import OptimConfig, ScheduleConfig, StageConfig, StageSettings, TrainConfig, ZeroConfig


class Config(Section):
    run: RunConfig
    data: DataConfig
    objective: Annotated[
        Annotated[ObjectiveName, Tag("<name>")]
        | Annotated[list[ObjectiveConfig], Field(min_length=1), Tag("<mixture>")],
        Discriminator(lambda objective: "<mixture>" if isinstance(objective, list) else "<name>"),
    ] = Field("mlm", description="what the model learns to predict, or a list of {kind, share, weight}")
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
        seq_len, micro = self.data.seq_len, self.train.micro_batch_size
        key = "a batch of train.batch_ramp" if self.train.batch_ramp else "train.global_batch_size"
        found = [StageSettings(after, seq_len, rows, micro, key) for after, rows in self.train.batch_sizes]
        for number, stage in enumerate(self.curriculum):
            key = f"curriculum.{number}.global_batch_size"
            found.append(replace(found[-1], **stage.model_dump(exclude_none=True), key=key))
        return found

    @property
    def objectives(self) -> tuple[ObjectiveConfig, ...]:
        """The objectives in the order of their rows in a batch: objectives of one view are neighbours."""
        if isinstance(self.objective, str):
            return (ObjectiveConfig(kind=self.objective, share=1.0),)
        views = [*View]
        return tuple(sorted(self.objective, key=lambda one: views.index(OBJECTIVES[one.kind].view)))

    @property
    def objective_kinds(self) -> tuple[ObjectiveKind, ...]:
        """What follows from the names of `objectives`."""
        return tuple(OBJECTIVES[one.kind] for one in self.objectives)

    @property
    def objective_kind(self) -> ObjectiveKind:
        """The kind that the trained model is for: the first one that fills masks, or the first one."""
        return next((kind for kind in self.objective_kinds if kind.fills_masks), self.objective_kinds[0])

    @property
    def only_fills_drawn_masks(self) -> bool:
        """Whether the objective is masked language modelling and nothing else."""
        kind = self.objective_kind
        return len(self.objectives) == 1 and kind.draws_masks and kind.fills_masks

    @property
    def block_rows(self) -> int:
        """The fewest rows of a micro-batch: a multiple has a whole number of rows for each constant share."""
        return block_rows(self.objectives)

    @property
    def objective_text(self) -> str:
        """The objectives in words: "mlm", or "mlm 75%, clm 25%" with the shares of the first step and the last."""
        if len(self.objectives) == 1:
            return self.objectives[0].kind
        shares = [[f"{end:.4g}%" for end in dict.fromkeys(100 * end for end in one.ends)] for one in self.objectives]
        return ", ".join(f"{one.kind} {' to '.join(of)}" for one, of in zip(self.objectives, shares, strict=True))

    @property
    def longest_row(self) -> int:
        """The largest sequence length of all stages."""
        return max(stage.seq_len for stage in self.stages)

    @model_validator(mode="after")
    def _cross_checks(self) -> "Config":
        self._stages_fit()
        self._fits_objective()
        if self.model.arch == "auto":
            self._no_native_settings()
        if self.train.compile is True and self.zero.stage == 3:
            raise ValueError("train.compile is for zero.stage 0 to 2, whose weights stay in place; set one of the two")
        if self.train.flash_attention in (3, 4):
            self._uses_newer_flash_attention()
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

    def _fits_objective(self) -> None:
        kinds, name = self.objective_kinds, self.objective_text
        self._shares_add_up()
        unread = [setting for setting in kinds[0].unread if all(setting in kind.unread for kind in kinds)]
        self.masking.refuse_unread(*unread, section="masking.", why=f"is not read by objective {name}")
        if self.masking.diffusion.start and any("rate" not in kind.unread for kind in kinds):
            raise ValueError(f"masking.diffusion.start is for objectives without masking.rate, not {name}; remove it")
        if any(kind.draws_masks for kind in kinds):
            self._predicts()
        elif self.eval.masks == "common":
            raise ValueError(f"eval.masks common is for objective mlm, not {name}; set it to own")
        if self.masking.device == "gpu" and not self.only_fills_drawn_masks:
            raise ValueError(f"masking.device gpu is for objective mlm, not {name}")
        native = ("bert", "roberta", "modernbert")
        if self.model.arch not in native and any(kind.view is not View.BIDIRECTIONAL for kind in kinds):
            raise ValueError(f"objective {name} needs model.arch bert, roberta or modernbert, not {self.model.arch}")
        if any(kind.needs_pairs for kind in kinds) and (self.data.packing == "concat" or self.data.shuffled_ngrams):
            raise ValueError(f"objective {name} needs whole pairs; set data.packing best_fit, data.shuffled_ngrams 0")
        if not self.objective_kind.fills_masks and self.track.models != "none":
            raise ValueError(
                "track.models is for models that fill masks, and MLflow's pipeline would end each text of one of "
                f"objective {name} with [SEP]; set it to none, and use `maskwright export`"
            )

    def _shares_add_up(self) -> None:
        names = [one.kind for one in self.objectives]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"objective has {twice} twice; give it one share")
        for place, which in enumerate(("first", "last")):
            total = sum(one.ends[place] for one in self.objectives)
            if abs(total - 1) > 1e-6:
                raise ValueError(f"the shares of objective at the {which} step add up to {total:.4g}; make them 1")
        if len(names) == 1 and self.objectives[0].weight is not None:
            raise ValueError(f"objective has a weight for {names[0]} alone, which changes nothing; remove it")
        if len({one.share.schedule for one in self.objectives if isinstance(one.share, ShareSchedule)}) > 1:
            raise ValueError("the shares of objective change by two schedules and would not add up to 1; use one")

    def _stages_fit(self) -> None:
        first = len(self.train.batch_sizes)  # of the curriculum, among the stages
        for number, stage in enumerate(self.stages):
            micro, batch, later = stage.micro_batch_size, stage.global_batch_size, number - first
            if micro and batch % micro:
                inherited = later >= 0 and self.curriculum[later].micro_batch_size is None
                place = f"curriculum.{later}" if later >= 0 else "train"
                raise ValueError(
                    f"{stage.key} ({batch}) must be a multiple of "
                    + ("the micro_batch_size" if inherited else f"{place}.micro_batch_size")
                    + f" ({micro}{' of the stage before' if inherited else ''})"
                )
            if later >= 0 and stage.after_step <= (before := self.stages[number - 1].after_step):
                ramp = self.train.batch_ramp and not later
                raise ValueError(
                    f"curriculum.{later}.after_step ({stage.after_step}) must be larger than "
                    + (f"the {before} steps of train.batch_ramp" if ramp else "in the stage before")
                )

    def _no_native_settings(self) -> None:
        for name in ("fused_kernels", "compile", "activation_checkpointing", "flash_attention"):
            if getattr(self.train, name) not in (False, "auto"):
                raise ValueError(f"train.{name} is for the native encoder, not for model.arch auto; remove it")

    def _uses_newer_flash_attention(self) -> None:
        version = self.train.flash_attention
        if self.train.precision == "fp32":
            raise ValueError(
                f"train.flash_attention {version} is for train.precision bf16 and fp16, not fp32; remove it"
            )
        if self.model.dropout:
            raise ValueError(f"train.flash_attention {version} is for model.dropout 0; remove it")
        if self.train.flash_attention == 3 and self.run.deterministic:
            raise ValueError(
                "train.flash_attention 3 gives other gradients from run to run, which run.deterministic forbids; set "
                "one of the two"
            )

    def _predicts(self) -> None:
        rate, shortest = self.masking.rate, min(stage.seq_len for stage in self.stages)
        least = rate if isinstance(rate, float) else min(rate.start, rate.end)
        if 2 * least * (shortest - 2) < 1:
            raise ValueError(
                f"masking.rate {least:g} is less than half a token of a row of {shortest} slots, so nothing would be "
                f"predicted; raise it to {math.ceil(500 / (shortest - 2)) / 1000:g} at least, or make rows longer"
            )
