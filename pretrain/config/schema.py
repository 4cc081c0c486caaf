"""The whole config, and the checks across its sections."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, PrivateAttr, Tag, ValidationError, model_validator

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
    check_objective_form,
)
from pretrain.config.phases import CHANGEABLE, SCHEDULED, PhaseConfig, StepSpan, named, settings_of, spans
from pretrain.config.run import CheckpointConfig, EvalConfig, GuardConfig, RunConfig, TrackConfig
from pretrain.config.section import Section
from pretrain.config.training import OptimConfig, ScheduleConfig, StageSettings, TrainConfig, ZeroConfig

_ENDLESS = 10**15  # steps
_FINEST = 1024  # the largest denominator of a constant share


@dataclass(frozen=True)
class Phase:
    """A phase of a run: the steps after the first `start` steps, up to `end`.

    Attributes:
        name: "" for the only phase of a run without phases.
        config: the config of this phase alone, with all that it inherits; its train.steps are those of the run.
        restart: whether its data are read from a start.
        spans: of the settings that may follow a schedule, see SCHEDULED.
        changes: see PhaseConfig.
    """

    number: int
    name: str
    start: int
    end: int
    config: "Config"
    restart: bool
    spans: Mapping[str, StepSpan]
    changes: Mapping[str, Any]


class Config(Section):
    run: RunConfig
    data: DataConfig
    objective: Annotated[
        Annotated[ObjectiveName, Tag("<name>")]
        | Annotated[list[ObjectiveConfig], Field(min_length=1), Tag("<mixture>")],
        Discriminator(lambda objective: "<mixture>" if isinstance(objective, list) else "<name>"),
        BeforeValidator(check_objective_form),
    ] = Field("mlm", description="what the model learns to predict, or a list of {kind, share, weight}")
    masking: MaskingConfig = MaskingConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    train: TrainConfig
    phases: list[PhaseConfig] = Field(default_factory=list, description="parts of the run, and what each one changes")
    zero: ZeroConfig = ZeroConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    guard: GuardConfig = GuardConfig()
    track: TrackConfig = TrackConfig()
    cluster: ClusterConfig = ClusterConfig()
    deepspeed: dict[str, Any] = Field(default_factory=dict, description="raw DeepSpeed keys, laid over ours")
    _later: tuple["Config", ...] = PrivateAttr(())  # configs of the phases after the first one

    @property
    def data_locations(self) -> list[str]:
        """The paths and URLs of all data sets that the run reads."""
        train = [source.path for phase in self.run_phases for source in phase.config.data.train]
        return train if self.data.valid is None else [*train, self.data.valid]

    @property
    def run_phases(self) -> tuple[Phase, ...]:
        """The phases in order; a config without phases has one.

        The sections of the config itself are those of the first phase.
        """
        if not self.phases:
            whole = dict.fromkeys(SCHEDULED, StepSpan(0, self.train.steps))
            return (Phase(0, "", 0, self.train.steps, self, False, whole, {}),)
        phases: list[Phase] = []
        start, train = 0, self.train
        for number, phase in enumerate(self.phases):
            changed: dict[str, Any] = {"phases": []}
            if number:
                later = self._later[number - 1]  # its values are checked, those of `phase` as written
                own = {name: getattr(later, name) for name in (*CHANGEABLE, "objective")}
                train = train.model_copy(update={name: getattr(later.train, name) for name in phase.train})
                changed |= own | {"train": train}
            restart, end = bool(phase.data.get("restart")), start + phase.steps
            config = self.model_copy(update=changed)
            phases.append(
                Phase(number, phase.name, start, end, config, restart, spans(self.phases, number), phase.changes)
            )
            start = end
        return tuple(phases)

    def phase_at(self, steps_done: int) -> Phase:
        """The phase of the step after `steps_done` steps; the last one at the end of the run."""
        return [phase for phase in self.run_phases if phase.start <= steps_done][-1]

    @property
    def stages(self) -> list[StageSettings]:
        """The shape of the batches in each phase, in order."""
        stages: list[StageSettings] = []
        key = "train.global_batch_size"
        for phase in self.run_phases:
            data, train = phase.config.data, phase.config.train
            if phase.number and "train.global_batch_size" in phase.changes:
                key = f"phases.{phase.name}.train.global_batch_size"
            sizes = data.seq_len, train.global_batch_size, train.micro_batch_size
            stages.append(StageSettings(phase.start, *sizes, key, phase.number))
        return stages

    @property
    def objectives(self) -> tuple[ObjectiveConfig, ...]:
        """The objectives of the first phase, those of one view next to each other."""
        if isinstance(self.objective, str):
            return (ObjectiveConfig(kind=self.objective, share=1.0),)
        views = [*View]
        return tuple(sorted(self.objective, key=lambda part: views.index(OBJECTIVES[part.kind].view)))

    @property
    def objective_kinds(self) -> tuple[ObjectiveKind, ...]:
        """The objectives of all phases, in the order of their rows in a batch: one view after the other."""
        phases = self.run_phases if self.phases else ()
        configs = [phase.config for phase in phases] or [self]
        kinds = dict.fromkeys(OBJECTIVES[part.kind] for config in configs for part in config.objectives)
        views = [*View]
        return tuple(sorted(kinds, key=lambda kind: views.index(kind.view)))

    @property
    def objective_kind(self) -> ObjectiveKind:
        """The kind that the trained model is for: the first one that fills masks, or the first one."""
        return next((kind for kind in self.objective_kinds if kind.fills_masks), self.objective_kinds[0])

    @property
    def masks_at_a_rate(self) -> bool:
        """Whether an objective of this config reads masking.rate."""
        return any("rate" not in OBJECTIVES[part.kind].unread for part in self.objectives)

    @property
    def block_rows(self) -> int:
        """The fewest rows of a micro-batch that give each constant share whole rows. Shares that change are rounded."""
        shares = [part.share for part in self.objectives if not isinstance(part.share, ShareSchedule)]
        return math.lcm(*(Fraction(share).limit_denominator(_FINEST).denominator for share in shares))

    @property
    def objective_text(self) -> str:
        """The objectives in words: "mlm", or "mlm 75%, clm 25%" with the shares of the first step and the last."""
        if self.phases:
            return ", then ".join(dict.fromkeys(phase.config.objective_text for phase in self.run_phases))
        if len(self.objectives) == 1:
            return self.objectives[0].kind
        shares = [[f"{end:.4g}%" for end in dict.fromkeys(100 * end for end in part.ends)] for part in self.objectives]
        return ", ".join(f"{part.kind} {' to '.join(of)}" for part, of in zip(self.objectives, shares, strict=True))

    @property
    def longest_row(self) -> int:
        """The largest sequence length of all stages."""
        return max(stage.seq_len for stage in self.stages)

    @model_validator(mode="after")
    def _lay_out_phases(self) -> "Config":
        """Fill in train.steps, and make the config of each phase."""
        if self.phases:
            names = [phase.name for phase in self.phases]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ValueError(f"phases has two phases with the name {twice!r}; rename one")
            if missing := next((phase.name for phase in self.phases if not (phase.steps or phase.tokens)), None):
                raise ValueError(f"phases.{missing}.steps is missing; add it")
            if self.train.tokens:
                raise ValueError("phases have their own lengths; remove train.tokens")
            self.__dict__["phases"] = self._phases_with_steps()
            total = sum(phase.steps for phase in self.phases)
            if self.train.steps not in (0, total):
                raise ValueError(
                    f"train.steps is {self.train.steps}, and the steps of phases add up to {total}; remove train.steps"
                )
            self.__dict__["train"] = self.train.model_copy(update={"steps": total})
            base = self.model_dump(exclude={"phases"})
            first, *later = (self._of_phase(base, number) for number in range(len(self.phases)))
            self.__dict__.update({name: getattr(first, name) for name in (*CHANGEABLE, "objective")})
            self._later = tuple(later)
        elif self.train.tokens and not self.train.steps:
            self.__dict__["train"] = self.train.model_copy(update={"steps": self._steps_for(self.train.tokens)})
        if not self.train.steps:
            raise ValueError("train.steps is missing; add it to the config")
        return self

    def _phases_with_steps(self) -> list[PhaseConfig]:
        """The phases, with steps where they have a length in tokens alone."""
        base = self.model_dump(exclude={"phases"})
        base["train"] |= {"steps": _ENDLESS}  # so that any step of another section is before the end
        steps = [
            phase.steps or self._of_phase(base, number)._steps_for(phase.tokens or 0)
            for number, phase in enumerate(self.phases)
        ]
        return [phase.model_copy(update={"steps": own}) for phase, own in zip(self.phases, steps, strict=True)]

    def _steps_for(self, tokens: int) -> int:
        """The fewest steps with so many slots of rows."""
        return -(-tokens // (self.data.seq_len * self.train.global_batch_size))

    def _of_phase(self, base: dict[str, Any], number: int) -> "Config":
        try:
            return Config.model_validate(settings_of(base, self.phases, number))
        except ValidationError as error:
            raise named(error, self.phases[number].name) from None

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
        if (profile := self.train.profile) and profile.steps[1] > self.train.steps:
            raise ValueError(
                f"train: profile.steps {[*profile.steps]} end after the last step ({self.train.steps}); write earlier "
                "ones"
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
        kinds, name = tuple(OBJECTIVES[part.kind] for part in self.objectives), self.objective_text
        self._shares_add_up()
        unread = [setting for setting in kinds[0].unread if all(setting in kind.unread for kind in kinds)]
        why = f"is not read by objective {name}"
        for problem in self.masking.unread_problems(*unread, section="masking.", why=why):
            raise ValueError(problem)
        if any(kind.draws_masks for kind in kinds):
            self._predicts()
        elif self.eval.masks == "common":
            raise ValueError(f"eval.masks common is for objective mlm, not {name}; set it to own")
        native = ("bert", "roberta", "modernbert")
        if self.model.arch not in native and any(kind.view is not View.BIDIRECTIONAL for kind in kinds):
            raise ValueError(f"objective {name} needs model.arch bert, roberta or modernbert, not {self.model.arch}")
        if any(kind.needs_pairs for kind in kinds) and self.data.packing == "concat":
            raise ValueError(f"objective {name} needs whole pairs; set data.packing best_fit")
        if not self.objective_kind.fills_masks and self.track.models != "none":
            raise ValueError(
                "track.models is for models that fill masks, and MLflow's pipeline would end each text of one of "
                f"objective {name} with [SEP]; set it to none, and use `maskwright export`"
            )

    def _shares_add_up(self) -> None:
        names = [part.kind for part in self.objectives]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"objective has {twice} twice; give it one share")
        for place, which in enumerate(("first", "last")):
            total = sum(part.ends[place] for part in self.objectives)
            if abs(total - 1) > 1e-6:
                raise ValueError(f"the shares of objective at the {which} step add up to {total:.4g}; make them 1")
        if len(names) == 1 and self.objectives[0].weight is not None:
            raise ValueError(f"objective has a weight for {names[0]} alone, which changes nothing; remove it")
        if len({part.share.schedule for part in self.objectives if isinstance(part.share, ShareSchedule)}) > 1:
            raise ValueError("the shares of objective change by two schedules and would not add up to 1; use one")

    def _stages_fit(self) -> None:
        for stage in self.stages:
            micro, batch = stage.micro_batch_size, stage.global_batch_size
            if micro and batch % micro:
                raise ValueError(f"{stage.key} ({batch}) must be a multiple of train.micro_batch_size ({micro})")

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
