"""Config section `data`: data sets, row length, packing."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pretrain.config.section import Section

SeqLen = Annotated[int, Field(ge=8, le=65536)]


class SourceConfig(Section):
    path: str = Field(description="a data set folder or its URL")
    weight: float | None = Field(None, gt=0, description="share of the rows, relative to the other sources")
    epochs: float | None = Field(None, gt=0, description="how often it is read while the others are theirs; 1")

    @model_validator(mode="after")
    def _one_share(self) -> "SourceConfig":
        if self.weight is not None and self.epochs is not None:
            raise ValueError(f"give {self.path!r} either weight or epochs")
        return self


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
