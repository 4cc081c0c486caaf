"""The settings of a fine-tuning, its examples, and the specification of each model that it trains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from torch import Tensor

from data_prep.common.errors import UserError
from data_prep.common.urls import shown
from data_prep.storage import spread
from pretrain.philox import derive_key, draw

T = TypeVar("T")

_SEARCH_KEY = derive_key(0, "fine-tuning search")

IGNORED = -100  # label of tokens without a prediction

Example = dict[str, Any]
"""Arguments of a model for one text: inputs, [length] each, and targets, an integer or one per token."""

HeadOutputs = list[np.ndarray]
"""The values read from the logits of each held-out example, without padding."""


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of a fine-tuning that affect its result, except the model and the data.

    batch_size: in examples.
    max_length: in tokens, specials included. Longer texts are truncated.
    dropout: of the encoder and the head; None: as in the model's config.
    init: "random" trains the same architecture from random weights.
    limit, limit_valid: number of evenly spaced examples to use of each file; None: all.
    metric: the main metric; None: the task's.
    search: number of training examples, at most a fifth, that take the place of the held-out file; None: use that file.
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
    search: int | None = None


def select_examples(
    settings: FinetuneSettings, read: Callable[[str], list[T]], train: str, valid: str
) -> tuple[list[T], list[T]]:
    """The examples to train on and to measure on.

    With `settings.search`, both are parts of the training file, the same for every model, and `valid` is not read.

    Raises UserError if the training file has too few examples for a search.
    """
    examples = spread(read(train), settings.limit)
    if settings.search is None:
        return examples, spread(read(valid), settings.limit_valid)
    if not (count := min(settings.search, len(examples) // 5)):
        raise UserError(f"{shown(train)}: {len(examples)} examples are too few to choose settings with. Use 5 or more.")
    chosen = {*np.argsort(draw(_SEARCH_KEY, len(examples), 0, 0, 0), kind="stable")[:count].tolist()}
    return (
        [example for number, example in enumerate(examples) if number not in chosen],
        [examples[number] for number in sorted(chosen)],
    )


@dataclass(frozen=True)
class Head:
    """Specification of one model of a task.

    name: "" if the task has only one model. examples: to train on.
    auto_class: a transformers class such as AutoModelForSequenceClassification.
    held_out: the examples to predict after an epoch, from the outputs of the heads before this one in that epoch.
    read: what to keep of the logits [batch, ...].
    options: entries of the model config, such as `num_labels`.
    """

    name: str
    auto_class: Any
    examples: list[Example]
    held_out: Callable[[Sequence[HeadOutputs]], list[Example]]
    read: Callable[[Tensor], Tensor]
    options: dict[str, Any] = field(default_factory=dict)


def most_likely(logits: Tensor) -> Tensor:
    """Number of the largest logit: int64 [batch, ...]."""
    return logits.argmax(-1)


def with_targets(examples: Sequence[Example]) -> list[Example]:
    """Keep examples with at least one label: a batch without labels has no loss."""
    return [example for example in examples if set(example["labels"]) != {IGNORED}]


def label_options(labels: Sequence[str]) -> dict[str, Any]:
    """Label entries of a model config."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: id for id, label in enumerate(labels)}}


def cut_note(cut: int, of: int, what: str, max_length: int) -> list[str]:
    """Note on the number of truncated examples; empty if no example is truncated."""
    return [f"{cut:,} of {of:,} {what} are longer than {max_length} tokens, and are cut"] if cut else []
