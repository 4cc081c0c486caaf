"""Settings of a fine-tuning that affect its result, except the model and the data."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of one fine-tuning.

    batch_size: in examples; for questions, in windows.
    max_length: in tokens, specials included. Longer texts are truncated; questions use windows.
    dropout: of the encoder and the head; None: as in the model's config.
    init: "random" trains the same architecture from random weights.
    limit, limit_valid: number of evenly spaced examples to use of each file; None: all.
    """

    task: str
    epochs: int = 3
    lr: float = 5e-5
    batch_size: int = 32
    max_length: int = 128
    dropout: float | None = None
    init: Literal["pretrained", "random"] = "pretrained"
    columns: tuple[str, ...] = ()
    limit: int | None = None
    limit_valid: int | None = None
