"""Word labelling: named entities, parts of speech."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import AutoModelForTokenClassification

from data_prep.errors import UserError
from data_prep.urls import shown
from evaluation.finetuning.example_files import LabelledSentence, read_columns, spread
from evaluation.finetuning.feature_batches import IGNORED, Feature, cut_note, label_names, label_options, with_targets
from evaluation.finetuning.learner import Head, Learner
from evaluation.finetuning.metrics import names_entities, token_metrics
from evaluation.finetuning.settings import FinetuneSettings


class TokenTask:
    """Predict a label at the first token of each word; other tokens have no label.

    The metric is entity F1, or accuracy without entity labels. Words without a token, for example beyond `max_length`,
    get the prediction "O", or the most frequent label if there is no "O".
    """

    without_model = "the most frequent training label"

    def __init__(self, settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> None:
        sentences = spread(read_columns(train, settings.columns), settings.limit)
        held_out = spread(read_columns(valid, settings.columns), settings.limit_valid)
        counts = Counter(label for sentence in sentences for label in sentence.labels)
        self._labels = label_names(set(counts))
        if len(counts) < 2:
            raise UserError(f"{shown(train)}: all words have the label {self._labels[0]!r}; two labels are needed")
        ids = {label: id for id, label in enumerate(self._labels)}
        for sentence in held_out:
            for word, label in zip(sentence.words, sentence.labels, strict=True):
                if label not in ids:
                    raise UserError(f"{sentence.place}: no training example has the label {label!r} of {word!r}")
        self._absent = "O" if "O" in counts else counts.most_common(1)[0][0]
        features, _, cut = _features(sentences, ids, tokenizer, settings.max_length)
        self._features, self._firsts, cut_held_out = _features(held_out, ids, tokenizer, settings.max_length)
        self.notes = cut_note(cut + cut_held_out, len(sentences) + len(held_out), "sentences", settings.max_length)
        if not (learnable := with_targets(features)):
            raise UserError(f"{shown(train)}: no word has a token within {settings.max_length}; nothing can be learnt")
        self.heads = [Head("", AutoModelForTokenClassification, learnable, label_options(self._labels))]
        self._gold = [sentence.labels for sentence in held_out]
        majority = counts.most_common(1)[0][0]
        self.baseline = token_metrics(self._gold, [[majority] * len(labels) for labels in self._gold])
        self.metric = "f1" if any(names_entities(labels) for labels in self._gold) else "accuracy"

    def evaluate(self, learners: Sequence[Learner]) -> dict[str, float]:
        token_labels = learners[0].predict(self._features, lambda output: output.logits.argmax(-1))
        predicted = [
            [self._absent if place is None else self._labels[int(ids[place])] for place in firsts]
            for ids, firsts in zip(token_labels, self._firsts, strict=True)
        ]
        return token_metrics(self._gold, predicted)


def _features(
    sentences: list[LabelledSentence], ids: dict[str, int], tokenizer: Any, max_length: int
) -> tuple[list[Feature], list[list[int | None]], int]:
    """Encode sentences. Return features, the place of each word's first token, and the number of truncated sentences.

    Words are joined with spaces, so every tokenizer sees text as in pretraining.
    """
    texts = [" ".join(sentence.words) for sentence in sentences]
    encoded = tokenizer(
        texts, truncation=True, max_length=max_length, return_attention_mask=False, return_offsets_mapping=True
    )
    features, places = [], []
    for number, sentence in enumerate(sentences):
        firsts = first_tokens(sentence.words, encoded["offset_mapping"][number])
        labels = [IGNORED] * len(encoded["input_ids"][number])
        for label, place in zip(sentence.labels, firsts, strict=True):
            if place is not None:
                labels[place] = ids[label]
        inputs = {name: encoded[name][number] for name in encoded if name != "offset_mapping"}
        features.append(Feature(inputs, {"labels": labels}))
        places.append(firsts)
    return features, places, sum(bool(encoding.overflowing) for encoding in encoded.encodings)


def first_tokens(words: list[str], offsets: list[tuple[int, int]]) -> list[int | None]:
    """First token of each word. The last character of a token decides its word: a token may begin with a space."""
    owners = np.repeat(np.arange(len(words)), [len(word) + 1 for word in words])
    firsts: list[int | None] = [None] * len(words)
    for place, (begin, end) in enumerate(offsets):
        if end > begin and firsts[owner := int(owners[end - 1])] is None:
            firsts[owner] = place
    return firsts
