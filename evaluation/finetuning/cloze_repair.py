"""Cloze repair: find the wrong words of a sentence, mask them, and predict the right tokens.

Two models share the work. The detector labels each word: keep, remove, or replace by 1 to MOST_TOKENS tokens. The
filler sees that many [MASK] tokens in place of the word and predicts them independently in one pass. Missing words are
neither detected nor repaired, because there is no word to label.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any

import numpy as np
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoModelForTokenClassification

from data_prep.common.errors import UserError
from data_prep.common.urls import shown
from data_prep.tokenizer import LONG_WORD, word_differences
from evaluation.finetuning.example_files import TableRow, read_table
from evaluation.finetuning.heads import (
    IGNORED,
    Example,
    FinetuneSettings,
    Head,
    HeadOutputs,
    cut_note,
    label_options,
    most_likely,
    select_examples,
    with_targets,
)
from evaluation.finetuning.metrics import f_beta, precision_recall, share

MOST_TOKENS = 8  # that replace a word
KEEP = 0  # detector labels: KEEP, or 1 + the number of replacement tokens
LABELS = ["keep", "remove", *(f"replace by {n}" for n in range(1, MOST_TOKENS + 1))]

WordIds = tuple[int, ...]


@dataclass(frozen=True)
class Edit:
    """A correction: the words [begin, end) of a wrong text become the tokens `right`. The range may be empty."""

    begin: int
    end: int
    right: WordIds


@dataclass(frozen=True)
class RepairPair:
    """A wrong text (words as token ids), its edits, and the right text (tokens)."""

    words: list[WordIds]
    edits: list[Edit]
    right: WordIds

    @property
    def labels(self) -> list[int]:
        """Detector label of each word. All tokens of an edit replace its first word; its other words are removed."""
        labels = [KEEP] * len(self.words)
        for edit in self.edits:
            labels[edit.begin : edit.end] = [1] * (edit.end - edit.begin)
            if edit.begin < edit.end:
                labels[edit.begin] += min(len(edit.right), MOST_TOKENS)
        return labels


class RepairTask:
    """Repair task on pairs of a wrong and a right text.

    The metric is F0.5 of the repairs, as usual for error correction, counted in tokens of the wrong texts. Precision is
    the share of detected tokens that are repaired, recall the share of wrong tokens that are repaired. A kept word can
    be part of a longer edit: it then counts as repaired, but not as detected.
    """

    metric = "repair_f0.5"
    without_model = "nothing is changed"

    def __init__(self, settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> None:
        columns = settings.columns or ("wrong", "right")
        if len(columns) != 2:
            raise UserError(f"--columns {','.join(columns)} is not WRONG,RIGHT. Name these two columns.")
        rows, held_out = select_examples(settings, lambda path: read_table(path, columns), train, valid)
        pairs, self._pairs = repair_pairs(rows, tokenizer), repair_pairs(held_out, tokenizer)
        self._row = RepairRow.of(tokenizer, settings.max_length)
        detecting = [self._row.detecting(pair.words, pair.labels) for pair in pairs]
        filling = [self._row.filling(pair.words, pair.labels, pair.edits) for pair in pairs]
        if not (filling := with_targets(filling)):
            raise UserError(
                f"{shown(train)}: no edit replaces a word, so there is nothing to learn. Use pairs with replaced words."
            )
        learnable, options = with_targets(detecting), label_options(LABELS)
        self.heads = [
            Head("detector", AutoModelForTokenClassification, learnable, self._to_detect, most_likely, options),
            Head("filler", AutoModelForMaskedLM, filling, self._to_fill, self._ordinary),
        ]
        self._specials = tokenizer.all_special_ids
        both = [*pairs, *self._pairs]
        cut = sum(len(self._row.places(pair.words)) < len(pair.words) for pair in both)
        self.notes = cut_note(cut, len(both), "wrong texts", settings.max_length)
        unchanged = [[KEEP] * len(pair.words) for pair in self._pairs]
        self.baseline = repair_metrics(self._pairs, unchanged, [pair.words for pair in self._pairs])

    def evaluate(self, outputs: Sequence[HeadOutputs]) -> dict[str, float]:
        detected, filled = outputs
        words, labels = [pair.words for pair in self._pairs], self._labels(detected)
        repaired = [self._row.filled(*all_of) for all_of in zip(words, labels, filled, strict=True)]
        return repair_metrics(self._pairs, labels, repaired)

    def _to_detect(self, _: Sequence[HeadOutputs]) -> list[Example]:
        return [self._row.detecting(pair.words) for pair in self._pairs]

    def _to_fill(self, outputs: Sequence[HeadOutputs]) -> list[Example]:
        """The texts of the filler, from the labels of the detector."""
        labels = self._labels(outputs[0])
        return [self._row.filling(pair.words, own) for pair, own in zip(self._pairs, labels, strict=True)]

    def _labels(self, detected: HeadOutputs) -> list[list[int]]:
        return [self._row.labels(pair.words, ids) for pair, ids in zip(self._pairs, detected, strict=True)]

    def _ordinary(self, logits: Tensor) -> Tensor:
        """The most likely ordinary token of each place, int64 [batch, longest]."""
        logits[..., self._specials] = -float("inf")
        return logits.argmax(-1)


@dataclass(frozen=True)
class RepairRow:
    """Row layout: `first`, the words that fit into `max_length`, `last`."""

    first: WordIds
    last: WordIds
    mask: int
    max_length: int

    @classmethod
    def of(cls, tokenizer: Any, max_length: int) -> "RepairRow":
        """Raise UserError if the tokenizer has no mask or adds no token before a text, as for causal models."""
        specials = tokenizer("")["input_ids"]
        if tokenizer.mask_token_id is None or not specials:
            raise UserError(
                "repair takes a masked language model, whose tokenizer has [MASK] and puts [CLS] before texts"
            )
        return cls((specials[0],), tuple(specials[1:]), tokenizer.mask_token_id, max_length)

    def places(self, words: Sequence[WordIds]) -> list[int]:
        """First slot of each word that fits."""
        begins = np.cumsum([len(self.first), *map(len, words)]).tolist()
        return [begin for begin, end in pairwise(begins) if end + len(self.last) <= self.max_length]

    def detecting(self, words: Sequence[WordIds], labels: Sequence[int] = ()) -> Example:
        """The example of the detector. The label is at the first token of each word."""
        return self._example(words, {number: (label,) for number, label in enumerate(labels)})

    def labels(self, words: Sequence[WordIds], predicted: np.ndarray) -> list[int]:
        """Labels of the words from token labels. Words that do not fit are kept."""
        labels = [int(predicted[place]) for place in self.places(words)]
        return labels + [KEEP] * (len(words) - len(labels))

    def filling(self, words: Sequence[WordIds], labels: Sequence[int], edits: Sequence[Edit] = ()) -> Example:
        """The example of the filler. The targets are the right tokens of the edits."""
        masked = self._masked(words, labels)
        replaced = [edit for edit in edits if edit.begin < edit.end]
        return self._example(masked, {edit.begin: edit.right[: len(masked[edit.begin])] for edit in replaced})

    def filled(self, words: Sequence[WordIds], labels: Sequence[int], predicted: np.ndarray) -> list[WordIds]:
        """The words after repair: predicted tokens replace the masks."""
        result = self._masked(words, labels)
        for number, place in enumerate(self.places(result)):
            if labels[number] != KEEP:
                result[number] = tuple(predicted[place : place + len(result[number])].tolist())
        return result

    def _masked(self, words: Sequence[WordIds], labels: Sequence[int]) -> list[WordIds]:
        return [
            word if label == KEEP else (self.mask,) * (label - 1) for word, label in zip(words, labels, strict=True)
        ]

    def _example(self, words: Sequence[WordIds], targets: Mapping[int, WordIds]) -> Example:
        """The words that fit. targets: from the first slot of a word on, by the number of the word."""
        places = self.places(words)
        ids = [*self.first, *chain(*words[: len(places)]), *self.last]
        labels = [IGNORED] * len(ids)
        for number, place in enumerate(places):
            own = targets.get(number, ())
            labels[place : place + len(own)] = own
        return {"input_ids": ids, "labels": labels}


def repair_metrics(pairs: list[RepairPair], labels: list[list[int]], repaired: list[list[WordIds]]) -> dict[str, float]:
    """Metrics of detection and repair.

    Args:
        labels: detector labels by word.
        repaired: tokens after repair, by word.
    """
    counts, whole = np.zeros(5, int), list[bool]()
    for pair, chosen, words in zip(pairs, labels, repaired, strict=True):
        sizes = np.array([len(word) for word in pair.words], int)
        is_taken = np.array(chosen, int) != KEEP
        is_wrong, is_right = np.zeros(len(sizes), bool), np.zeros(len(sizes), bool)
        for edit in pair.edits:
            is_wrong[edit.begin : edit.end] = True
            is_right[edit.begin : edit.end] = tuple(chain(*words[edit.begin : edit.end])) == edit.right
        kinds = is_wrong, is_taken, is_wrong & is_taken, is_right, is_right & is_taken
        counts += [sizes[kind].sum() for kind in kinds]
        whole.append(tuple(chain(*words)) == pair.right)
    wrong, taken, both, right, right_taken = counts.tolist()
    whole_of_wrong = [done for pair, done in zip(pairs, whole, strict=True) if pair.edits]
    detected = precision_recall(both, taken, wrong)
    precision, recall = share(right_taken, taken), share(right, wrong)
    return {
        **{f"detection_{name}": value for name, value in detected.items()},
        "detection_f0.5": f_beta(detected["precision"], detected["recall"], 0.5),
        "repair_precision": precision,
        "repaired_tokens": recall,
        "repair_f0.5": f_beta(precision, recall, 0.5),
        "repaired_sentences": sum(whole_of_wrong) / max(1, len(whole_of_wrong)),
        "right_sentences": sum(whole) / len(pairs),
    }


def repair_pairs(rows: Sequence[TableRow], tokenizer: Any) -> list[RepairPair]:
    """Pairs of rows with the cells wrong and right."""
    wrong, right = (_words([row.cells[place] for row in rows], tokenizer) for place in (0, 1))
    return [pair_of(*both) for both in zip(wrong, right, strict=True)]


def pair_of(wrong: list[WordIds], right: list[WordIds]) -> RepairPair:
    """Align the words of both texts with the algorithm of `maskwright prep`."""
    edits = [Edit(j, j_end, tuple(chain(*right[i:i_end]))) for i, i_end, j, j_end in word_differences(right, wrong)]
    return RepairPair(wrong, edits, tuple(chain(*right)))


def _words(texts: list[str], tokenizer: Any) -> list[list[WordIds]]:
    """Words of each text as tokens. Each token of a very long word counts as a word."""
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False)
    return [list(_split(ids, encoded.word_ids(number))) for number, ids in enumerate(encoded["input_ids"])]


def _split(ids: list[int], owners: list[int | None]) -> Iterator[WordIds]:
    for _, group in groupby(zip(owners, ids, strict=True), key=lambda pair: pair[0]):
        word = tuple(id for _, id in group)
        yield from [(id,) for id in word] if len(word) > LONG_WORD else [word]
