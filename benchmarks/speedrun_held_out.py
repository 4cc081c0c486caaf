"""The measure of the speedrun: bits per byte of held-out words that are masked, the same for every tokenizer.

Passages are cut from held-out documents, and 15% of their words (what spaces separate) are drawn by a key. A model sees
[MASK] for each token of these words. The measure is -log2 of the probabilities of all these tokens, divided by the
UTF-8 bytes of the words. The tokens of one word are predicted independently, and the model sees their number.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from pretrain.export import prediction_lag

WORD_SHARE, PASSAGE_WORDS = 0.15, 60
_KEY, _ROWS, _NOT_PREDICTED = 52, 32, -100


@dataclass(frozen=True)
class Passage:
    """A text, and the first and last + 1 character of each word in it that is predicted."""

    text: str
    words: Sequence[tuple[int, int]]

    @property
    def predicted_bytes(self) -> int:
        return sum(len(self.text[first:last].encode()) for first, last in self.words)

    def tokens(self, tokenizer: Any) -> tuple[list[int], list[int]]:
        """Ids [L] with [MASK] in the words, and labels [L]: the id there, else _NOT_PREDICTED; no special tokens."""
        encoding = tokenizer.backend_tokenizer.encode(self.text, add_special_tokens=False)
        ids, labels = [], []
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            masked = any(start < last and end > first for first, last in self.words)
            ids.append(tokenizer.mask_token_id if masked else number)
            labels.append(number if masked else _NOT_PREDICTED)
        return ids, labels


def passages_of(texts: Sequence[str], tokenizers: Sequence[Any], most: int, longest: int) -> list[Passage]:
    """At most `most` passages of the texts, in an order drawn by a key, each with at least one word to predict.

    tokenizers: of transformers. longest: passages with more tokens in one of them are left out.
    """
    random, passages = np.random.default_rng(_KEY), []
    for text in texts:
        words = [match.span() for match in re.finditer(r"\S+", text)]
        for number in range(0, len(words) - PASSAGE_WORDS + 1, PASSAGE_WORDS):
            part, drawn = words[number : number + PASSAGE_WORDS], random.random(PASSAGE_WORDS) < WORD_SHARE
            start = part[0][0]
            chosen = [(first - start, last - start) for (first, last), is_in in zip(part, drawn, strict=True) if is_in]
            passage = Passage(text[start : part[-1][1]], chosen)
            if chosen and all(len(passage.tokens(tokenizer)[0]) <= longest for tokenizer in tokenizers):
                passages.append(passage)
    return [passages[number] for number in random.permutation(len(passages))[:most]]


def bits_per_byte(nats: float, passages: Sequence[Passage]) -> float:
    return nats / math.log(2) / sum(passage.predicted_bytes for passage in passages)


def unigram_nats(log_probabilities: Any, tokenizer: Any, passages: Sequence[Passage]) -> float:
    """Sum over the passages' words by token frequencies; log_probabilities [V]."""
    labels = [label for passage in passages for label in passage.tokens(tokenizer)[1] if label != _NOT_PREDICTED]
    return -float(log_probabilities[labels].sum())


@torch.no_grad()
def nats(model: Any, tokenizer: Any, passages: Sequence[Passage], bare: bool = False) -> float:
    """Sum over the passages' words by a masked model of transformers. bare: without special tokens around passages."""
    lag, total = prediction_lag(model), 0.0
    before, after, no = ([], [], []) if bare else ([tokenizer.cls_token_id], [tokenizer.sep_token_id], [_NOT_PREDICTED])
    for first in range(0, len(passages), _ROWS):
        rows = [passage.tokens(tokenizer) for passage in passages[first : first + _ROWS]]
        ids = _padded([before + ids + after for ids, _ in rows], tokenizer.pad_token_id)
        labels = _padded([no + labels + no for _, labels in rows], _NOT_PREDICTED)
        real = _padded([[1] * len(before + ids + after) for ids, _ in rows], 0)
        logits = model(input_ids=ids, attention_mask=real).logits[:, : ids.shape[1] - lag]
        labels = labels[:, lag:]
        total += float(cross_entropy(logits[labels >= 0].float(), labels[labels >= 0], reduction="sum"))
    return total


def _padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
