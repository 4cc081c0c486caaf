"""Config section `model`: architecture, size, initial weights."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from pretrain.config.section import Section

Preset = dict[str, int]

# BERT's sizes (Turc et al., "Well-read students learn better", 2019; Devlin et al., 2019), and Megatron-LM's of 1.3e9.
_BERT_SIZES: dict[str, Preset] = {
    "tiny": {"layers": 2, "hidden": 128, "heads": 2},
    "mini": {"layers": 4, "hidden": 256, "heads": 4},
    "small": {"layers": 4, "hidden": 512, "heads": 8},
    "base": {"layers": 12, "hidden": 768, "heads": 12},
    "large": {"layers": 24, "hidden": 1024, "heads": 16},
    "1b": {"layers": 24, "hidden": 2048, "heads": 32},
}
# ModernBERT's base and large (Warner et al., 2024), and Ettin's other sizes (Weller et al., 2025).
_MODERN_SIZES: dict[str, Preset] = {
    "tiny": {"layers": 4, "hidden": 128, "heads": 2, "intermediate": 192},
    "mini": {"layers": 7, "hidden": 256, "heads": 4, "intermediate": 384},
    "small": {"layers": 19, "hidden": 512, "heads": 8, "intermediate": 768},
    "base": {"layers": 22, "hidden": 768, "heads": 12, "intermediate": 1152},
    "large": {"layers": 28, "hidden": 1024, "heads": 16, "intermediate": 2624},
    "1b": {"layers": 28, "hidden": 1792, "heads": 28, "intermediate": 3840},
}
PRESETS = {"bert": _BERT_SIZES, "roberta": _BERT_SIZES, "modernbert": _MODERN_SIZES}


class SizeConfig(Section):
    layers: int = Field(ge=1)
    hidden: int = Field(ge=8)
    heads: int = Field(ge=1)
    intermediate: int | None = Field(None, ge=8, description="4 x hidden by default, 1.5 x for modernbert")

    @model_validator(mode="after")
    def _divisible(self) -> "SizeConfig":
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self


class ModelConfig(Section):
    arch: Literal["bert", "roberta", "modernbert", "auto"] = Field("bert", description="the form of the model")
    config: str | dict[str, Any] | None = Field(
        None, description="arch auto: a configuration of transformers: a folder, a config.json, or {model_type, ...}"
    )
    size: SizeConfig = Field(
        SizeConfig(**_BERT_SIZES["mini"]), description=f"layers/hidden/heads, or one of {[*_BERT_SIZES]}"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="share of activations and attention that a step leaves out")
    max_positions: int | None = Field(None, ge=8, description="length of the position table; data.seq_len by default")
    local_attention: int = Field(128, ge=2, multiple_of=2, description="modernbert: tokens that most layers see")
    global_rope_theta: float = Field(160_000.0, gt=0, description="modernbert: rotary base where layers see all")
    local_rope_theta: float = Field(10_000.0, gt=0, description="modernbert: rotary base where they see near tokens")
    scaled_init: bool = Field(False, description="bert, roberta: smaller initial weights into the residual stream")
    init: Path | None = Field(None, description="a Hugging Face BERT folder to start from; random weights by default")
    init_vocabulary: Literal["same", "pieces"] = Field(
        "same", description="init: its vocabulary is the data's, or new tokens start as means of its tokens"
    )
    init_size: Literal["same", "tile"] = Field("same", description="init: its size is equal, or its weights are tiled")

    @property
    def title(self) -> str:
        """The model in a few words."""
        if self.config is not None:
            return str(self.config["model_type"] if isinstance(self.config, dict) else self.config)
        return f"{self.arch} {self.size.layers} x {self.size.hidden}"

    @model_validator(mode="after")
    def _auto(self) -> "ModelConfig":
        if (self.arch == "auto") != (self.config is not None):
            raise ValueError("arch auto and config go together: give both, or neither")
        if self.arch == "auto":
            self.refuse_unread("dropout", "size", "max_positions", why="comes from model.config with arch auto")
            self.refuse_unread("init", why="is for the native encoder, not for arch auto")
        return self

    @model_validator(mode="after")
    def _of_one_form(self) -> "ModelConfig":
        if self.arch != "modernbert":
            modern = ("local_attention", "global_rope_theta", "local_rope_theta")
            self.refuse_unread(*modern, why=f"is for arch modernbert, not {self.arch}")
        if self.arch not in ("bert", "roberta"):
            self.refuse_unread("scaled_init", why=f"is for arch bert and roberta, not {self.arch}")
        if self.init is None:
            self.refuse_unread("init_vocabulary", "init_size", why="is for weights of init, which is not set")
        if self.scaled_init and self.init is not None:
            raise ValueError("scaled_init is for random weights, and init gives others; remove one of the two")
        return self

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(name := values.get("size", "mini"), str):
            presets = PRESETS.get(str(values.get("arch", "bert")), _BERT_SIZES)
            if name not in presets:
                raise ValueError(f"size {name!r} is no preset; write one of {', '.join(presets)}")
            return values | {"size": presets[name]}
        return values
