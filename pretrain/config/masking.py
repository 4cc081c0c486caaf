"""Config section `masking`: strategies, rates, replacements."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Discriminator, Field, Tag, model_validator

from pretrain.config.section import Section

Rate = Annotated[float, Field(gt=0, lt=1)]
StrategyName = Literal["token", "whole_word", "span", "ngram", "collocation"]


class ReplacementConfig(Section):
    mask: float = Field(0.8, ge=0, le=1, description="share of selected tokens that become [MASK]")
    random: float = Field(0.1, ge=0, le=1, description="share that becomes another ordinary token; the rest stay")
    per: Literal["unit", "word", "token"] = Field("unit", description="what shares a fate: what is masked as a whole")

    @model_validator(mode="after")
    def _shares(self) -> "ReplacementConfig":
        if self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"mask + random is {self.mask + self.random:g}; the two shares may add up to 1 at most")
        return self


class RateSchedule(Section):
    schedule: Literal["linear", "cosine"]
    start: Rate = Field(description="at the first step")
    end: Rate = Field(description="at the last step")


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

    @model_validator(mode="after")
    def _of_a_strategy(self) -> "MaskingConfig":
        for name in ("span", "ngram"):
            if name not in self.weights:
                self.refuse_unread(name, why=f"is for strategy {name}, which masking.strategy does not choose")
        return self
