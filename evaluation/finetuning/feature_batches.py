"""Model inputs with targets, and batches of similar length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pretrain.philox import derive_key, draw

IGNORED = -100  # label of tokens without a prediction
_POOL = 50  # batches per pool; a pool is sorted by length


@dataclass(frozen=True)
class Feature:
    """Inputs and targets of one text or window.

    inputs: `input_ids`, and `token_type_ids` if the tokenizer has them, [length] each.
    targets: by argument name of the model; an integer, or one per token.
    """

    inputs: dict[str, list[int]]
    targets: dict[str, list[int] | int]

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])


def with_targets(features: Sequence[Feature]) -> list[Feature]:
    """Keep features with at least one label: a batch without labels has no loss."""
    return [feature for feature in features if set(feature.targets["labels"]) != {IGNORED}]  # type: ignore[arg-type]


def shuffled(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Batches of an epoch as feature numbers: shuffle, sort pools by length, split, shuffle the batches."""
    key = derive_key(seed, "finetune-order")
    order = np.argsort(draw(key, len(lengths), 0, 0, epoch), kind="stable")
    pools = [order[first : first + _POOL * batch_size] for first in range(0, len(order), _POOL * batch_size)]
    batches = [batch for pool in pools for batch in by_length(lengths, batch_size, pool)]
    return [batches[number] for number in np.argsort(draw(key, len(batches), 1, 0, epoch), kind="stable")]


def by_length(lengths: Sequence[int], batch_size: int, of: np.ndarray | None = None) -> list[np.ndarray]:
    """Batches of the features numbered in `of`, the shortest first."""
    numbers = np.arange(len(lengths)) if of is None else of
    ordered = numbers[np.argsort(np.asarray(lengths)[numbers], kind="stable")]
    return [ordered[first : first + batch_size] for first in range(0, len(ordered), batch_size)]


def collate(
    features: Sequence[Feature], pad_id: int, device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Padded inputs with `attention_mask`, and targets: int64 [batch, longest], or [batch] for integer targets."""

    def padded(lists: list[list[int]], filler: int) -> Tensor:
        rows = [torch.tensor(values, dtype=torch.int64) for values in lists]
        return pad_sequence(rows, batch_first=True, padding_value=filler).to(device)

    inputs = {
        name: padded([feature.inputs[name] for feature in features], pad_id if name == "input_ids" else 0)
        for name in features[0].inputs
    }
    inputs["attention_mask"] = padded([[1] * len(feature) for feature in features], 0)
    targets = {}
    for name in features[0].targets:
        values = [feature.targets[name] for feature in features]
        lists = [value for value in values if isinstance(value, list)]
        targets[name] = padded(lists, IGNORED) if lists else torch.tensor(values, device=device)
    return inputs, targets


def label_options(labels: Sequence[str]) -> dict[str, Any]:
    """Label entries of a model config."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: id for id, label in enumerate(labels)}}


def cut_note(cut: int, of: int, what: str, max_length: int) -> list[str]:
    """Note on the number of truncated examples; empty if there are none."""
    return [f"{cut:,} of {of:,} {what} are longer than {max_length} tokens, and are cut"] if cut else []
