"""The whole configuration of a run: one YAML file, `section.key=value` overrides, every key checked.

Nothing here imports torch, so that the command line and the launchers can check a config at once.
"""

import difflib
import math
import re
import typing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from data_prep.errors import UserError
from pretrain.redact import redact

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


Beta = Annotated[float, Field(ge=0, lt=1)]


def _is_number(annotation: Any) -> bool:
    kinds = set(typing.get_args(annotation) or (annotation,))
    return bool(kinds & {int, float}) and bool not in kinds


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name and _is_number(cls.model_fields[info.field_name].annotation):
            raise PydanticCustomError("bool_as_number", "it must be a number")
        return value


class RunConfig(Section):
    dir: Path = Field(description="the run folder: config, journal, status, checkpoints, exports")
    seed: int = Field(0, ge=0, lt=2**64, description="keys the order, the masks and the initial weights")
    resume: str = Field("auto", description="auto, required, never, or the path of a checkpoint folder")
    trust_checkpoint: bool = Field(
        False, description="load a checkpoint of another run, which can run its maker's code"
    )
    allow_changes: bool = Field(False, description="resume although a setting that decides a step's result differs")


class SourceConfig(Section):
    path: str = Field(description="a data set folder or its URL")
    weight: float | None = Field(None, gt=0, description="share of the rows, relative to the other sources")
    epochs: float | None = Field(None, gt=0, description="how often it is read while the others are theirs; 1")

    @model_validator(mode="after")
    def _one_share(self) -> "SourceConfig":
        if self.weight is not None and self.epochs is not None:
            raise ValueError(f"give {self.path!r} either weight or epochs")
        return self


SeqLen = Annotated[int, Field(ge=8, le=65536)]


class DataConfig(Section):
    train: list[SourceConfig] = Field(
        max_length=256,
        description="a data set written by `maskwright prep run` (folder or URL), or a list of {path, weight|epochs}",
    )
    valid: str | None = Field(None, description="a data set for the held-out loss")
    seq_len: SeqLen = Field(128, description="tokens a row, [CLS] and [SEP] included")
    packing: Literal["best_fit", "concat", "none"] = Field("best_fit", description="how documents share rows")
    window_blocks: int = Field(256, ge=1, le=4096, description="blocks packed and shuffled together")
    shuffled_ngrams: int = Field(0, ge=0, description="n: shuffle each document's n-grams of words; 0: natural order")
    damage_budget: int = Field(0, ge=0, description="tokens of damaged blocks that others may stand in for, in a run")
    cache_dir: Path | None = Field(None, description="where parts of remote data sets are kept")
    cache_gb: float = Field(50, gt=0, description="the most that cache_dir may hold")

    @field_validator("train", mode="before")
    @classmethod
    def _one_source(cls, train: Any) -> Any:
        if isinstance(train, str | Path):
            return [{"path": str(train), "weight": 1}]
        if not isinstance(train, list) or not train:
            raise PydanticCustomError("sources", "it must be a path, or a list of paths or of {path, weight}")
        return [{"path": source} if isinstance(source, str) else source for source in train]

    @field_validator("train")
    @classmethod
    def _same_shares(cls, train: list[SourceConfig]) -> list[SourceConfig]:
        if len({source.weight is None for source in train}) > 1:
            raise ValueError("give every source a weight, or none")
        return train

    @model_validator(mode="after")
    def _epochs_of_full_rows(self) -> "DataConfig":
        if self.packing == "none" and self.train[0].weight is None:
            raise ValueError("how often data are read is known for packed rows only; give every source a weight")
        return self


class ReplacementConfig(Section):
    mask: float = Field(0.8, ge=0, le=1, description="share of selected tokens that become [MASK]")
    random: float = Field(0.1, ge=0, le=1, description="share that becomes another ordinary token; the rest stay")
    per: Literal["unit", "word", "token"] = Field("unit", description="what shares a fate: what is masked as a whole")

    @model_validator(mode="after")
    def _shares(self) -> "ReplacementConfig":
        if self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"mask + random is {self.mask + self.random:g}; the two shares may add up to 1 at most")
        return self


Rate = Annotated[float, Field(gt=0, lt=1)]


class RateSchedule(Section):
    schedule: Literal["linear", "cosine"]
    start: Rate = Field(description="at the first step")
    end: Rate = Field(description="at the last step")


StrategyName = Literal["token", "whole_word", "span", "ngram", "collocation"]


class SpanConfig(Section):
    p: float = Field(0.2, gt=0, lt=1, description="a span goes on after each word with a probability of 1 - p")
    max_words: int = Field(10, ge=1, le=64, description="words of the longest span")


class MaskingConfig(Section):
    strategy: Annotated[
        Annotated[StrategyName, Tag("<name>")]
        | Annotated[dict[StrategyName, Annotated[float, Field(gt=0)]], Field(min_length=1), Tag("<mix>")],
        Discriminator(lambda strategy: "<mix>" if isinstance(strategy, dict) else "<name>"),
    ] = Field("token", description="what is masked as a whole, or a mix as {name: weight}")
    rate: Annotated[
        Annotated[Rate, Tag("<number>")] | Annotated[RateSchedule, Tag("<schedule>")],
        Discriminator(lambda rate: "<schedule>" if isinstance(rate, dict | RateSchedule) else "<number>"),
    ] = Field(
        0.15,
        validation_alias=AliasChoices("rate", "mlm_probability"),
        description="share of a row's ordinary tokens that are predicted, or {schedule, start, end}",
    )
    replacement: ReplacementConfig = ReplacementConfig()
    span: SpanConfig = SpanConfig()
    ngram: int = Field(3, ge=1, le=64, description="words of an n-gram")
    collocations: Path | None = Field(None, description="a list written by `maskwright prep collocations`")
    device: Literal["cpu", "gpu"] = Field("cpu", description="what masks the rows: the loader, or the GPU that trains")
    static_epochs: int = Field(0, ge=0, description="n: rows and masks of the first n epochs come again; 0: never")

    @property
    def weights(self) -> dict[StrategyName, float]:
        """The strategies, each with its weight."""
        return self.strategy if isinstance(self.strategy, dict) else {self.strategy: 1.0}

    @model_validator(mode="after")
    def _collocations(self) -> "MaskingConfig":
        if "collocation" in self.weights and self.collocations is None:
            raise ValueError(
                "strategy collocation needs masking.collocations, a list that `maskwright prep collocations` writes"
            )
        if self.collocations is not None and "collocation" not in self.weights:
            raise ValueError("collocations is a list for strategy collocation; set masking.strategy, or remove it")
        return self


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
    init: Path | None = Field(None, description="a Hugging Face BERT folder to start from; random weights by default")

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
        if self.arch == "auto" and self.dropout:
            raise ValueError("with arch auto, dropout is what config says; leave model.dropout out")
        if self.arch == "auto" and self.init is not None:
            raise ValueError("init is for the native encoder; leave it out with arch auto")
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


class OptimConfig(Section):
    name: Literal["adamw"] = "adamw"
    lr: float = Field(5e-4, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0, description="not applied to norms, biases and embeddings")
    grad_clip: float = Field(1.0, ge=0, description="largest global gradient norm; 0 for none")


class ScheduleConfig(Section):
    kind: Literal["wsd", "linear"] = "wsd"
    warmup_steps: int = Field(0, ge=0)
    decay_fraction: float = Field(0.2, ge=0, le=1, description="wsd: the last part of train.steps, decayed to zero")


class TrainConfig(Section):
    steps: int = Field(ge=1, description="optimizer steps of the whole run")
    global_batch_size: int = Field(32, ge=1, description="rows of seq_len a step, over all ranks")
    micro_batch_size: int | None = Field(None, ge=1, description="rows a rank and pass; by default no accumulation")
    precision: Literal["bf16", "fp32"] = "bf16"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the target that is spread over all ids")
    z_loss: float = Field(0.0, ge=0, description="weight of log(Z)**2, which keeps logits small")
    fused_kernels: bool = Field(False, description="Triton kernels for what lies between matrix products; needs a GPU")


class StageConfig(Section):
    after_step: int = Field(ge=1, description="the stage begins with the step after this one")
    seq_len: SeqLen | None = Field(None, description="as data.seq_len; that of the stage before by default")
    global_batch_size: int | None = Field(None, ge=1, description="as train.global_batch_size; likewise")
    micro_batch_size: int | None = Field(None, ge=1, description="as train.micro_batch_size; likewise")


@dataclass(frozen=True)
class StageSettings:
    """What holds from the step after `after_step` on."""

    after_step: int
    seq_len: int
    global_batch_size: int
    micro_batch_size: int | None


class ZeroConfig(Section):
    stage: Literal[0, 1, 2, 3] = 1


class CheckpointConfig(Section):
    every_steps: int = Field(1000, ge=1)
    keep: int = Field(2, ge=1, description="newest checkpoints kept")


class EvalConfig(Section):
    every_steps: int = Field(1000, ge=1)
    rows: int = Field(1024, ge=1, description="rows of the held-out set used at each evaluation, at most")


class TrackConfig(Section):
    uri: str = "sqlite:///mlflow.db"
    experiment: str = "maskwright"

    @field_validator("uri")
    @classmethod
    def _no_password(cls, uri: str) -> str:
        if redact(uri) != uri:  # the config is copied into the run folder, checkpoints and MLflow
            raise ValueError(
                "user names, passwords and tokens do not belong in a config; set MLFLOW_TRACKING_URI instead"
            )
        return uri


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
    track: TrackConfig = TrackConfig()
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
        if self.zero.stage == 0 and self.train.precision != "fp32":
            raise ValueError("zero.stage 0 is for train.precision fp32; write zero.stage 1 for bf16")
        if self.model.max_positions and self.model.max_positions < self.longest_row:
            raise ValueError(
                f"model.max_positions ({self.model.max_positions}) must be at least the longest data.seq_len "
                f"({self.longest_row})"
            )
        return self

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


def load_config(path: Path | None, overrides: list[str] | None = None) -> Config:
    """Read a config file, if there is one, and lay `section.key=value` overrides (values in YAML) over it.

    Raises:
        UserError: naming the file or override, the key, and what to write instead.
    """
    values = {} if path is None else _read_yaml(path)
    for override in overrides or []:
        _apply_override(values, override)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error)}" if path else _explain(error)) from None


def save_config(config: Config, path: Path) -> None:
    """Write every value, defaults included, as YAML that `load_config` reads back to an equal Config."""
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads `5e-4` as a string; people who write learning rates mean a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}:{where} is not valid YAML ({getattr(error, 'problem', None) or error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config is a mapping of sections such as run:, data:, train:")
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    parts = key.split(".")
    if not separator or not all(parts):
        raise UserError(f"override {override!r} is not of the form section.key=value")
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise UserError(f"override {override!r}: {text!r} is not valid YAML") from None
    for part in parts[:-1]:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            values[part] = inner = {}
        values = inner
    values[parts[-1]] = value


def _explain(error: ValidationError) -> str:
    """The first problem, as one sentence."""
    problem = error.errors()[0]
    location = tuple(part for part in problem["loc"] if not str(part).startswith("<"))  # the kinds a value may be of
    where = ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        return f"{where} is not a key{_nearest(location)}"
    if problem["type"] == "missing":
        return f"{where} is missing; add it to the config"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "model_type":
        message = "it must be a section of keys"
    message = message.replace("Input should be", "it must be", 1)
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} is {problem['input']!r}, but {message}"


def _nearest(location: tuple[int | str, ...]) -> str:
    section: Any = Config
    for part in location[:-1]:
        if isinstance(part, int):  # a place in a list, whose section has been found
            continue
        section = _section_of(section.model_fields[part].annotation) if part in section.model_fields else None
        if section is None:
            return ""
    names = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1, cutoff=0.5)
    if names:
        return f"; did you mean {'.'.join([*map(str, location[:-1]), names[0]])}?"
    return f"; the keys there are {', '.join(section.model_fields)}"


def _section_of(annotation: Any) -> type[Section] | None:
    """The section of a field that is one, may be one, or is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _section_of(part))), None)
