"""Config sections for training: optimizer, schedule, batches, precision, ZeRO."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pretrain.config.section import Section

_MOST_PROFILED = 100  # steps
Beta = Annotated[float, Field(ge=0, lt=1)]


def _is_switch(value: Any) -> Any:
    if value in (True, False, "auto") or str(value).lower() in ("true", "false"):
        return value
    raise PydanticCustomError("switch", "it must be auto, true or false")


Switch = Annotated[bool | Literal["auto"], BeforeValidator(_is_switch)]
FlashVersion = Literal["auto", 2, 3, 4]


class MuonConfig(Section):
    momentum: Beta = Field(0.95, description="Nesterov's momentum")
    newton_schulz_steps: int = Field(5, ge=1, le=20, description="of the iteration that orthogonalises")


class OptimConfig(Section):
    name: Literal["adamw", "lamb", "stable_adamw", "muon"] = Field("adamw", description="the optimizer")
    lr: float = Field(5e-4, gt=0, description="peak learning rate")
    betas: tuple[Beta, Beta] = Field((0.9, 0.98), description="decay of Adam's first and second moment")
    eps: float = Field(1e-6, gt=0, description="Adam's epsilon")
    weight_decay: float = Field(0.01, ge=0, description="not applied to norms, biases and embeddings")
    decay_embeddings: bool = Field(False, description="apply weight_decay to embeddings too")
    grad_clip: float = Field(1.0, ge=0, description="largest global gradient norm; 0 for none")
    muon: MuonConfig | None = Field(None, description="settings of name muon alone")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of an average of the weights over the steps")

    @model_validator(mode="before")
    @classmethod
    def _of_muon(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") == "muon" and values.get("muon") is None:
            return values | {"muon": {}}
        return values

    def problems(self) -> Iterator[str]:
        if self.muon is not None and self.name != "muon":
            yield f"muon has settings of name muon, which {self.name} does not read; remove them"


class ScheduleConfig(Section):
    kind: Literal["wsd", "cosine", "linear", "constant"] = Field(
        "wsd", description="after the warm-up: wsd falls at the end, cosine and linear all the way, constant never"
    )
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    decay: Literal["linear", "cosine", "1-sqrt"] = Field("linear", description="wsd: how the rate falls at the end")
    decay_fraction: float = Field(0.2, ge=0, le=1, description="wsd: the last part of train.steps, where it falls")
    min_ratio: float = Field(0.0, ge=0, lt=1, description="share of the peak rate at the end of the decay")

    def problems(self) -> Iterator[str]:
        if self.kind != "wsd":
            yield from self.unread_problems("decay", "decay_fraction", why=f"is for kind wsd, not {self.kind}")
        if self.kind == "constant":
            yield from self.unread_problems("min_ratio", why="is for rates that fall, and kind constant does not")


class ProfileConfig(Section):
    steps: tuple[int, int] = Field(description="the first step of the profile and the last one")

    def problems(self) -> Iterator[str]:
        first, last = self.steps
        if not 1 <= first <= last:
            yield f"steps [{first}, {last}] must be a first step, 1 or later, and a last one not before it"
        if last - first >= _MOST_PROFILED:
            yield (
                f"steps [{first}, {last}] are {last - first + 1}, whose traces would fill memory and disk; write "
                f"{_MOST_PROFILED} or fewer"
            )


class TrainConfig(Section):
    steps: int = Field(0, ge=1, description="optimizer steps of the whole run; with phases, the sum of theirs")
    tokens: int | None = Field(None, ge=1, description="the length in slots of rows, instead of steps")
    global_batch_size: int = Field(32, ge=1, description="rows of seq_len a step, over all ranks")
    micro_batch_size: int | None = Field(
        None, ge=1, description="rows a rank and pass; auto: the largest that fits the GPU; on a CPU no accumulation"
    )
    precision: Literal["bf16", "fp16", "fp32"] = Field("bf16", description="arithmetic of the model")
    z_loss: float = Field(0.0, ge=0, description="weight of log(Z)**2, which keeps logits small")
    activation_checkpointing: bool = Field(False, description="layers are computed again instead of kept in memory")
    compile: Switch = Field(
        "auto", description="torch.compile of a native encoder; auto: on a GPU, if it has no kernels"
    )
    fused_kernels: Switch = Field("auto", description="Triton kernels between matrix products; auto: likewise")
    flash_attention: FlashVersion = Field("auto", description="its version; auto: 2, or a newer one if it agrees")
    profile: ProfileConfig | None = Field(None, description="steps to profile: a trace and a table of times")

    @field_validator("micro_batch_size", mode="before")
    @classmethod
    def _auto_is_none(cls, value: Any) -> Any:
        return None if value == "auto" else value


@dataclass(frozen=True)
class StageSettings:
    """A phase with its shape of batches, from the step after `after_step` on.

    key: of the batch size, in the config. phase: the number of the phase.
    """

    after_step: int
    seq_len: int
    global_batch_size: int
    micro_batch_size: int | None
    key: str
    phase: int = 0


class ZeroConfig(Section):
    stage: Literal[0, 1, 2, 3] = Field(1, description="parts of the state that ZeRO spreads over the processes")
    offload: Literal["none", "cpu"] = Field("none", description="where optimizer state and fp32 weights are")
    reduce_dtype: Literal["fp32", "bf16"] = Field("fp32", description="of gradients sent between processes")
    overlap: bool = Field(True, description="stage 1 without offload: send gradients and weights during the passes")

    def problems(self) -> Iterator[str]:
        if self.offload != "none" and self.stage == 0:
            yield "offload needs the optimizer state of one process apart: write stage 1, 2 or 3"
        if self.stage != 1 or self.offload != "none":
            yield from self.unread_problems("overlap", why="is for stage 1 without offload")
