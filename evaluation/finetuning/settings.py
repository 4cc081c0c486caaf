"""What decides the result of a fine-tuning, besides the model and the data."""

from dataclasses import dataclass
from typing import Literal

WARMUP = 0.1  # share of the steps in which the learning rate rises
WEIGHT_DECAY = 0.01
CLIP = 1.0  # largest norm of the gradient


@dataclass(frozen=True)
class FinetuneSettings:
    """Of one fine-tuning.

    Attributes:
        batch_size: examples; of questions, windows.
        max_length: tokens with the special ones; longer texts are cut, or of questions laid out in windows.
        dropout: of the encoder and the head, in the place of what the model's config says; None leaves that.
        init: "random" trains the same architecture from random weights.
        limit, limit_valid: examples that are used of each file, spread evenly over it; None for all.
        metric: the main one; None for the task's own.
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
    metric: str | None = None
