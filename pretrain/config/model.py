"""Config section `model`: architecture, size, initial weights."""

from collections.abc import Iterator
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
# EuroBERT's published sizes (Boizard et al., 2025), and two to try things with.
_EURO_SIZES: dict[str, Preset] = {
    "tiny": {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "intermediate": 384},
    "mini": {"layers": 6, "hidden": 256, "heads": 4, "kv_heads": 2, "intermediate": 768},
    "210m": {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "intermediate": 3072},
    "610m": {"layers": 26, "hidden": 1152, "heads": 18, "kv_heads": 6, "intermediate": 4096},
    "2.1b": {"layers": 32, "hidden": 2304, "heads": 18, "kv_heads": 6, "intermediate": 6144},
}
# ESM-2's published sizes (Lin et al., 2023), and two to try things with.
_ESM_SIZES: dict[str, Preset] = {
    "tiny": {"layers": 4, "hidden": 128, "heads": 8},
    "mini": {"layers": 6, "hidden": 192, "heads": 12},
    "8m": {"layers": 6, "hidden": 320, "heads": 20},
    "35m": {"layers": 12, "hidden": 480, "heads": 20},
    "150m": {"layers": 30, "hidden": 640, "heads": 20},
    "650m": {"layers": 33, "hidden": 1280, "heads": 20},
    "3b": {"layers": 36, "hidden": 2560, "heads": 40},
    "15b": {"layers": 48, "hidden": 5120, "heads": 40},
}
PRESETS = {
    "bert": _BERT_SIZES,
    "roberta": _BERT_SIZES,
    "modernbert": _MODERN_SIZES,
    "eurobert": _EURO_SIZES,
    "esm": _ESM_SIZES,
}
ROTARY_BASES = {"modernbert": 160_000.0, "eurobert": 250_000.0, "esm": 10_000.0}  # families with rotary positions


class SizeConfig(Section):
    layers: int = Field(ge=1, description="transformer layers")
    hidden: int = Field(ge=8, description="hidden size, a multiple of heads")
    heads: int = Field(ge=1, description="attention heads")
    intermediate: int | None = Field(None, ge=8, description="4 x hidden by default, 1.5 x for modernbert")
    kv_heads: int | None = Field(None, ge=1, description="eurobert: heads of key and value; as heads by default")

    def problems(self) -> Iterator[str]:
        if self.hidden % self.heads:
            yield f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})"
        if self.kv_heads and self.heads % self.kv_heads:
            yield f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"


class ModelConfig(Section):
    arch: Literal["bert", "roberta", "modernbert", "eurobert", "esm", "auto"] = Field(
        "bert", description="the form of the model"
    )
    config: str | dict[str, Any] | None = Field(
        None, description="arch auto: a configuration of transformers: a folder, a config.json, or {model_type, ...}"
    )
    size: SizeConfig = Field(
        SizeConfig(**_BERT_SIZES["mini"]), description="layers/hidden/heads, or the name of a preset of the form"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="share of activations and attention that a step leaves out")
    max_positions: int | None = Field(None, ge=8, description="length of the position table; data.seq_len by default")
    local_attention: int = Field(128, ge=2, multiple_of=2, description="modernbert: tokens that most layers see")
    global_rope_theta: float = Field(160_000.0, gt=0, description="rotary base; modernbert: where layers see all")
    local_rope_theta: float = Field(10_000.0, gt=0, description="modernbert: rotary base where they see near tokens")
    scaled_init: bool = Field(False, description="not modernbert: smaller initial weights into the residual stream")
    init: Path | None = Field(
        None, description="a Hugging Face folder or hub:OWNER/NAME[@REVISION] to start from; random weights by default"
    )
    init_vocabulary: Literal["same", "pieces"] = Field(
        "same", description="init: its vocabulary is the data's, or new tokens start as means of its tokens"
    )
    init_size: Literal["same", "tile"] = Field("same", description="init: its size is equal, or its weights are tiled")

    @property
    def rotary(self) -> bool:
        """Whether positions are rotary, not a table."""
        return self.arch in ROTARY_BASES

    @property
    def title(self) -> str:
        """The model in a few words."""
        if self.config is not None:
            return str(self.config["model_type"] if isinstance(self.config, dict) else self.config)
        return f"{self.arch} {self.size.layers} x {self.size.hidden}"

    def problems(self) -> Iterator[str]:
        if (self.arch == "auto") != (self.config is not None):
            yield "arch auto and config go together: give both, or neither"
        if self.arch == "auto":
            of_config = "dropout", "size", "max_positions"
            yield from self.unread_problems(*of_config, why="comes from model.config with arch auto")
            yield from self.unread_problems("init", why="is for the native encoder, not for arch auto")
        unread = {
            ("local_attention", "local_rope_theta"): ["modernbert"],
            ("global_rope_theta",): [*ROTARY_BASES],
            ("scaled_init",): ["bert", "roberta", "eurobert", "esm"],
            ("dropout",): ["bert", "roberta", "modernbert"],
        }
        for names, archs in unread.items():
            if self.arch not in archs:
                yield from self.unread_problems(*names, why=f"is for arch {', '.join(archs)}, not {self.arch}")
        if self.size.kv_heads and self.arch != "eurobert":
            yield f"size.kv_heads is for arch eurobert, not {self.arch}; remove it"
        if self.init is None:
            of_init = "init_vocabulary", "init_size"
            yield from self.unread_problems(*of_init, why="is for weights of init, which is not set")
        if self.init_size == "tile" and self.arch not in ("bert", "roberta", "modernbert"):
            yield f"init_size tile is for arch bert, roberta, modernbert, not {self.arch}"
        if self.scaled_init and self.init is not None:
            yield "scaled_init is for random weights, and init gives others; remove one of the two"

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        arch = str(values.get("arch", "bert"))
        if arch in ROTARY_BASES:
            values = {"global_rope_theta": ROTARY_BASES[arch]} | values
        if isinstance(name := values.get("size", "mini"), str):
            presets = PRESETS.get(arch, _BERT_SIZES)
            if name not in presets:
                raise ValueError(f"size {name!r} is no preset; write one of {', '.join(presets)}")
            return values | {"size": presets[name]}
        return values
