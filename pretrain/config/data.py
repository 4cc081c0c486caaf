"""Config sections `data` and `masking`: data sets, row length, packing; strategies, rates, replacements."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from pretrain.config.section import Section, SettingSchedule

_OpenShare = Annotated[float, Field(gt=0, lt=1)]
StrategyName = Literal["token", "whole_word", "span"]
SeqLen = Annotated[int, Field(ge=8, le=65536)]


class SourceConfig(Section):
    takes_text = True
    path: str = Field(description="a data set folder or its URL")
    weight: float | None = Field(None, gt=0, description="share of the rows, relative to the other sources")
    epochs: float | None = Field(None, gt=0, description="how often it is read while the others are theirs; 1")
    sources: dict[str, Annotated[float, Field(ge=0)]] | None = Field(None, description="{NAME: weight} of its sources")

    def problems(self) -> Iterator[str]:
        if self.weight is not None and self.epochs is not None:
            yield f"give {self.path!r} either weight or epochs"
        if self.sources is not None and not any(self.sources.values()):
            yield f"give a source of {self.path!r} a weight above 0"


class DataConfig(Section):
    train: list[SourceConfig] = Field(
        max_length=4096,
        description="a data set written by `maskwright prep run` (folder or URL), or a list of {path, weight|epochs}",
    )
    temperature: float | None = Field(
        None, ge=1, description="T: shares of data sets, or of the sources of one, are in proportion to size^(1/T)"
    )
    valid: str | None = Field(None, description="a data set for the held-out loss")
    seq_len: SeqLen = Field(128, description="tokens a row, [CLS] and [SEP] included")
    packing: Literal["best_fit", "concat", "none"] = Field("best_fit", description="how documents share rows")
    window_blocks: int = Field(256, ge=1, le=4096, description="blocks packed and shuffled together")
    damage_budget: int = Field(0, ge=0, description="most tokens of damaged blocks that a run may replace by others")
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

    @field_validator("temperature", mode="before")
    @classmethod
    def _no_exponent(cls, temperature: Any) -> Any:
        if isinstance(temperature, float) and 0 < temperature < 1:
            raise ValueError(
                f"{temperature:g} is below 1. If you mean an exponent of {temperature:g}, write {1 / temperature:.3g}."
            )
        return temperature

    def problems(self) -> Iterator[str]:
        other = (source.sources or (self.train[1:] and (source.weight or source.epochs)) for source in self.train)
        if self.temperature is not None and any(other):
            yield (
                "temperature takes the shares of data sets, or of the sources of one data set, from their sizes. Leave "
                "out weight, epochs and sources in train, or set temperature to null."
            )
        if self.packing == "none" and self.train[0].weight is None:
            yield "how often data are read is known for packed rows only; give every data set a weight"


class ReplacementConfig(Section):
    mask: float = Field(0.8, ge=0, le=1, description="share of selected tokens that become [MASK]")
    random: float = Field(0.1, ge=0, le=1, description="share that becomes another ordinary token; the rest stay")
    per: Literal["unit", "token"] = Field("unit", description="what is replaced together")

    def problems(self) -> Iterator[str]:
        if self.mask + self.random > 1 + 1e-9:
            yield f"mask + random is {self.mask + self.random:g}; the two shares may add up to 1 at most"


class RateSchedule(SettingSchedule):
    start: _OpenShare = Field(description="at the first step")
    end: _OpenShare = Field(description="at the last step")


class SpanConfig(Section):
    p: float = Field(0.2, gt=0, lt=1, description="a span continues after each word with a probability of 1 - p")
    max_words: int = Field(10, ge=1, le=64, description="words of the longest span")


class SelectionConfig(Section):
    weights: Path | None = Field(None, description="a list written by `maskwright prep weights`")
    unmarked: float = Field(1.0, ge=0, le=1e6, description="weight of a token that the data do not mark, next to 1")


class DiffusionConfig(Section):
    weight: Literal["inverse_rate", "constant"] = Field("inverse_rate", description="how much a prediction counts")


class MaskingConfig(Section):
    strategy: Annotated[
        Annotated[StrategyName, Tag("<name>")]
        | Annotated[dict[StrategyName, Annotated[float, Field(gt=0)]], Field(min_length=1), Tag("<mix>")],
        Discriminator(lambda strategy: "<mix>" if isinstance(strategy, dict) else "<name>"),
    ] = Field("token", description="what is masked as a whole, or a mix as {name: weight}")
    rate: Annotated[
        Annotated[_OpenShare, Tag("<number>")] | Annotated[RateSchedule, Tag("<schedule>")],
        Discriminator(lambda rate: "<schedule>" if isinstance(rate, dict | RateSchedule) else "<number>"),
    ] = Field(
        0.15,
        validation_alias=AliasChoices("rate", "mlm_probability"),
        description="share of a row's ordinary tokens that are predicted, or {schedule, start, end}",
    )
    replacement: ReplacementConfig = ReplacementConfig()
    span: SpanConfig = SpanConfig()
    selection: SelectionConfig = SelectionConfig()
    diffusion: DiffusionConfig = DiffusionConfig()

    @property
    def rate_text(self) -> str:
        """The rate in words: "15%", or "30% to 15% (linear)"."""
        if isinstance(self.rate, float):
            return f"{self.rate:.0%}"
        return f"{self.rate.start:.0%} to {self.rate.end:.0%} ({self.rate.schedule})"

    @property
    def weights(self) -> dict[StrategyName, float]:
        """The strategies, each with its weight."""
        return self.strategy if isinstance(self.strategy, dict) else {self.strategy: 1.0}

    def problems(self) -> Iterator[str]:
        if "span" not in self.weights:
            yield from self.unread_problems("span", why="is for strategy span, which masking.strategy does not choose")
