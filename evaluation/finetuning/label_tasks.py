"""Tasks on labelled texts: classes or scores of sentences and pairs, and classes of words such as named entities."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import MultinomialNB
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from data_prep.common.errors import UserError
from data_prep.common.urls import shown
from evaluation.finetuning.example_files import LabelledSentence, TableRow, first_names, read_columns, read_table
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
from evaluation.finetuning.metrics import classification_metrics, names_entities, regression_metrics, token_metrics

_GOLD = "gold_label"  # the label's column in SNLI and MultiNLI
_UNDECIDED = "-"  # its value for pairs without agreement of three annotators
_TEXTS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"))
_LABELS, _SCORES = ("label", _GOLD), ("score", "label")
COLA = ("4", "2")  # text and label, without a header


class Classification:
    """Classify texts or pairs of texts. The metric is accuracy, or Matthews correlation for files in CoLA's format.

    The baseline is naive Bayes or the most frequent label, whichever has the better metric: with many examples of
    class 1, a model that always predicts it has a high F1.
    """

    def __init__(self, settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> None:
        columns = _text_columns(settings, train)
        self.metric = "matthews" if columns == COLA else "accuracy"
        self.notes: list[str] = []
        rows, held_out = select_examples(settings, lambda path: read_labelled(path, columns, self.notes), train, valid)
        known = rows + held_out if settings.search else rows
        ids = number_labels(train, f"all {len(known)} examples have", {_label(row) for row in known})
        for row in held_out:
            if _label(row) not in ids:
                raise UserError(f"{row.place}: no training example has the label {_label(row)!r}")
        examples, predicted, cut = _examples(rows, held_out, ids, tokenizer, settings.max_length)
        self.notes += cut
        options = label_options([*ids]) | {"problem_type": "single_label_classification"}
        self.heads = [Head("", AutoModelForSequenceClassification, examples, lambda _: predicted, most_likely, options)]
        self._classes = len(ids)
        self._gold = [ids[_label(row)] for row in held_out]
        learnt = [ids[_label(row)] for row in rows]
        self.without_model = "naive Bayes on token counts"
        self.baseline = self._metrics(naive_bayes(examples, learnt, predicted))
        constant = self._metrics([Counter(learnt).most_common(1)[0][0]] * len(held_out))
        metric = settings.metric or self.metric
        if constant.get(metric, 0) > self.baseline.get(metric, 0):
            self.without_model, self.baseline = "the most frequent training label", constant

    def evaluate(self, outputs: Sequence[HeadOutputs]) -> dict[str, float]:
        return self._metrics([int(label) for label in outputs[0]])

    def _metrics(self, predicted: Sequence[int]) -> dict[str, float]:
        return classification_metrics(self._gold, predicted, self._classes)


class Regression:
    """Predict a score of texts or pairs of texts. The metric is Spearman's rank correlation.

    The baseline is the mean training score; for pairs, it is linear in the share of common words, fitted to the
    training scores.
    """

    metric = "spearman"

    def __init__(self, settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> None:
        columns = _text_columns(settings, train, _SCORES)
        rows, held_out = select_examples(settings, lambda path: read_table(path, columns), train, valid)
        scores = {_label(row): _score(row) for row in [*rows, *held_out]}
        learnt, self._gold = ([scores[_label(row)] for row in part] for part in (rows, held_out))
        if len(set(learnt)) < 2:
            raise UserError(f"{shown(train)}: all examples have the score {learnt[0]:g}; two scores are needed")
        examples, predicted, self.notes = _examples(rows, held_out, scores, tokenizer, settings.max_length)
        options = label_options(["score"]) | {"problem_type": "regression"}
        read = lambda logits: logits[..., 0].float()  # noqa: E731
        self.heads = [Head("", AutoModelForSequenceClassification, examples, lambda _: predicted, read, options)]
        line = LinearRegression().fit(_common_words(rows), learnt)
        self.without_model = "the share of common words" if len(columns) == 3 else "the mean training score"
        self.baseline = regression_metrics(self._gold, line.predict(_common_words(held_out)).tolist())

    def evaluate(self, outputs: Sequence[HeadOutputs]) -> dict[str, float]:
        return regression_metrics(self._gold, [float(score) for score in outputs[0]])


def naive_bayes(examples: Sequence[Example], labels: Sequence[int], held_out: Sequence[Example]) -> list[int]:
    """Predict held-out labels with a naive Bayes model of the tokens. The two texts of a pair count as one."""
    n_tokens = 1 + max(max(example["input_ids"]) for example in [*examples, *held_out])
    counter = CountVectorizer(analyzer=lambda example: example["input_ids"], vocabulary=range(n_tokens))
    model = MultinomialNB().fit(counter.transform(examples), labels)
    return [int(label) for label in model.predict(counter.transform(held_out))]


def _common_words(rows: Sequence[TableRow]) -> list[list[float]]:
    """[rows, 1]: the words that both texts have, as a share of all their words (Jaccard index); 0 for one text."""
    shares = []
    for row in rows:
        first, *second = (set(text.lower().split()) for text in row.cells[:-1])
        common, words = first.intersection(*second), first.union(*second)
        shares.append([len(common) / max(1, len(words)) if second else 0.0])
    return shares


def _text_columns(settings: FinetuneSettings, path: str, labels: Sequence[str] = _LABELS) -> tuple[str, ...]:
    """The columns of one or two texts and of the label. Raises UserError for another number of columns."""
    columns = settings.columns or find_columns(path, labels)
    if len(columns) not in (2, 3):
        raise UserError(
            f"--columns {','.join(columns)} is not TEXT,LABEL or TEXT,TEXT,LABEL. Name the columns of the text, of "
            "a second text if any, and of the label."
        )
    return columns


def find_columns(path: str, labels: Sequence[str] = _LABELS) -> tuple[str, ...]:
    """Find the text and label columns in a common header, or in CoLA's format without a header.

    Raises UserError if the first line is neither.
    """
    names = first_names(path)
    for texts, label in product((*_TEXTS, ("sentence",), ("text",)), labels):
        if {*texts, label} <= set(names):
            return (*texts, label)
    if len(names) == 4 and names[1].isdecimal():
        return COLA
    named = ", ".join(map(repr, names))[:200]
    raise UserError(
        f"{shown(path)}: cannot find the text and label columns among {named}. Name them with --columns TEXT,LABEL, or "
        "by number if there is no header."
    )


def read_labelled(path: str, columns: Sequence[str], notes: list[str]) -> list[TableRow]:
    """Read labelled rows. A new note gives the number of rows left out because their `gold_label` is undecided."""
    rows = read_table(path, columns)
    labelled = [row for row in rows if columns[-1] != _GOLD or _label(row) != _UNDECIDED]
    if not labelled:
        raise UserError(f"{shown(path)}: the {_GOLD} of all {len(rows)} examples is {_UNDECIDED!r}; none can be used")
    if left_out := len(rows) - len(labelled):
        what = f"{left_out:,} of {len(rows):,} examples are left out, whose {_GOLD} is {_UNDECIDED!r}"
        notes.append(f"{shown(path)}: {what}")
    return labelled


def _label(row: TableRow) -> str:
    label = row.cells[-1].strip()
    if not label:
        raise UserError(f"{row.place}: the label is empty")
    return label


def _score(row: TableRow) -> float:
    try:
        score = float(row.cells[-1])
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{row.place}: the score {row.cells[-1]!r} is not a finite number. Correct it.")
    return score


def _examples(
    rows: list[TableRow], held_out: list[TableRow], targets: Mapping[str, float], tokenizer: Any, max_length: int
) -> tuple[list[Example], list[Example], list[str]]:
    """Encode rows. Return training and held-out examples, and a note on truncated ones. targets: of labels."""
    both = [*rows, *held_out]
    texts = [[row.cells[place] for row in both] for place in range(len(rows[0].cells) - 1)]
    encoded = tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False)
    for row, ids_of in zip(both, encoded["input_ids"], strict=True):
        if not ids_of:  # this tokenizer adds no special tokens
            raise UserError(f"{row.place}: the text is empty")
    examples = [
        {name: encoded[name][number] for name in encoded} | {"labels": targets[_label(row)]}
        for number, row in enumerate(both)
    ]
    cut = sum(bool(encoding.overflowing) for encoding in encoded.encodings)
    return examples[: len(rows)], examples[len(rows) :], cut_note(cut, len(both), "examples", max_length)


def number_labels(path: str, all_have: str, names: set[str]) -> dict[str, int]:
    """Numbers of the sorted labels; labels that are all integers are sorted by value.

    Raises UserError if there are not two.
    """
    labels = sorted(names, key=int if all(re.fullmatch(r"-?\d+", label) for label in names) else None)
    if len(labels) < 2:
        raise UserError(f"{shown(path)}: {all_have} the label {labels[0]!r}; two labels are needed")
    return {label: id for id, label in enumerate(labels)}


class TokenTask:
    """Predict a label at the first token of each word; other tokens have no label.

    The metric is entity F1, or accuracy without entity labels. Words without a token, for example beyond `max_length`,
    get the prediction "O", or the most frequent label if there is no "O".
    """

    without_model = "the most frequent training label"

    def __init__(self, settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> None:
        read = lambda path: read_columns(path, settings.columns)  # noqa: E731
        sentences, held_out = select_examples(settings, read, train, valid)
        known = sentences + held_out if settings.search else sentences
        counts = Counter(label for sentence in known for label in sentence.labels)
        ids = number_labels(train, "all words have", set(counts))
        self._labels = [*ids]
        for sentence in held_out:
            for word, label in zip(sentence.words, sentence.labels, strict=True):
                if label not in ids:
                    raise UserError(f"{sentence.place}: no training example has the label {label!r} of {word!r}")
        self._absent = "O" if "O" in counts else counts.most_common(1)[0][0]
        both, trained = [*sentences, *held_out], len(sentences)
        examples, firsts, cut = _word_examples(both, ids, tokenizer, settings.max_length)
        predicted, self._firsts = examples[trained:], firsts[trained:]
        self.notes = cut_note(cut, len(both), "sentences", settings.max_length)
        if not (learnable := with_targets(examples[:trained])):
            raise UserError(f"{shown(train)}: no word has a token within {settings.max_length}; nothing can be learnt")
        options = label_options(self._labels)
        self.heads = [Head("", AutoModelForTokenClassification, learnable, lambda _: predicted, most_likely, options)]
        self._gold = [sentence.labels for sentence in held_out]
        majority = counts.most_common(1)[0][0]
        self.baseline = token_metrics(self._gold, [[majority] * len(labels) for labels in self._gold])
        self.metric = "f1" if any(names_entities(labels) for labels in self._gold) else "accuracy"

    def evaluate(self, outputs: Sequence[HeadOutputs]) -> dict[str, float]:
        predicted = [
            [self._absent if place is None else self._labels[int(ids[place])] for place in firsts]
            for ids, firsts in zip(outputs[0], self._firsts, strict=True)
        ]
        return token_metrics(self._gold, predicted)


def _word_examples(
    sentences: list[LabelledSentence], ids: dict[str, int], tokenizer: Any, max_length: int
) -> tuple[list[Example], list[list[int | None]], int]:
    """Encode sentences. Return examples, the place of each word's first token, and the number of truncated sentences.

    Words are joined with spaces, so every tokenizer sees text as in pretraining.
    """
    texts = [" ".join(sentence.words) for sentence in sentences]
    encoded = tokenizer(
        texts, truncation=True, max_length=max_length, return_attention_mask=False, return_offsets_mapping=True
    )
    examples, places = [], []
    for number, sentence in enumerate(sentences):
        firsts = first_tokens(sentence.words, encoded["offset_mapping"][number])
        labels = [IGNORED] * len(encoded["input_ids"][number])
        for label, place in zip(sentence.labels, firsts, strict=True):
            if place is not None:
                labels[place] = ids[label]
        inputs = {name: encoded[name][number] for name in encoded if name != "offset_mapping"}
        examples.append(inputs | {"labels": labels})
        places.append(firsts)
    return examples, places, sum(bool(encoding.overflowing) for encoding in encoded.encodings)


def first_tokens(words: list[str], offsets: list[tuple[int, int]]) -> list[int | None]:
    """First token of each word. The last character of a token decides its word: a token may begin with a space."""
    owners = np.repeat(np.arange(len(words)), [len(word) + 1 for word in words])
    firsts: list[int | None] = [None] * len(words)
    for place, (begin, end) in enumerate(offsets):
        if end > begin and firsts[owner := int(owners[end - 1])] is None:
            firsts[owner] = place
    return firsts
