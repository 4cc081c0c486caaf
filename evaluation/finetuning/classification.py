"""Classification of sentences and sentence pairs."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.naive_bayes import MultinomialNB
from transformers import AutoModelForSequenceClassification

from data_prep.errors import UserError
from data_prep.urls import shown
from evaluation.finetuning.example_files import TableRow, first_names, read_table, spread
from evaluation.finetuning.feature_batches import Feature, cut_note, label_names, label_options
from evaluation.finetuning.learner import Head, Learner
from evaluation.finetuning.metrics import classification_metrics
from evaluation.finetuning.settings import FinetuneSettings

_GOLD, _UNDECIDED = (
    "gold_label",
    "-",
)  # SNLI and MultiNLI: column name; label of pairs without agreement of three annotators
_TEXTS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"))
_LAYOUTS = tuple((*texts, label) for texts, label in product((*_TEXTS, ("sentence",), ("text",)), ("label", _GOLD)))
COLA = ("4", "2")  # text and label, without a header


class Classification:
    """Classify texts or pairs of texts. The metric is accuracy, or Matthews correlation for files in CoLA's format."""

    without_model = "naive Bayes on token counts"

    def __init__(self, settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> None:
        columns = settings.columns or find_columns(train)
        if len(columns) not in (2, 3):
            raise UserError(
                f"--columns {','.join(columns)} is not TEXT,LABEL or TEXT,TEXT,LABEL. Name the columns of the text, of "
                "a second text if any, and of the label."
            )
        self.metric = "matthews" if columns == COLA else "accuracy"
        rows, left_out = read_labelled(train, columns, settings.limit)
        held_out, left_out_valid = read_labelled(valid, columns, settings.limit_valid)
        labels = label_names({_label(row) for row in rows})
        if len(labels) < 2:
            raise UserError(
                f"{shown(train)}: all {len(rows)} examples have the label {labels[0]!r}; two labels are needed"
            )
        ids = {label: id for id, label in enumerate(labels)}
        for row in held_out:
            if _label(row) not in ids:
                raise UserError(f"{row.place}: no training example has the label {_label(row)!r}")
        features, cut = _features(rows, ids, tokenizer, settings.max_length)
        self._features, cut_held_out = _features(held_out, ids, tokenizer, settings.max_length)
        cut_notes = cut_note(cut + cut_held_out, len(rows) + len(held_out), "examples", settings.max_length)
        self.notes = left_out + left_out_valid + cut_notes
        options = label_options(labels) | {"problem_type": "single_label_classification"}
        self.heads = [Head("", AutoModelForSequenceClassification, features, options)]
        self._classes = len(labels)
        self._gold = [ids[_label(row)] for row in held_out]
        learnt = [ids[_label(row)] for row in rows]
        self.baseline = classification_metrics(self._gold, naive_bayes(features, learnt, self._features), self._classes)

    def evaluate(self, learners: Sequence[Learner]) -> dict[str, float]:
        labels = learners[0].predict(self._features, lambda output: output.logits.argmax(-1))
        return classification_metrics(self._gold, [int(label) for label in labels], self._classes)


def naive_bayes(features: Sequence[Feature], labels: Sequence[int], held_out: Sequence[Feature]) -> list[int]:
    """Predict held-out labels with a naive Bayes model of the tokens. The two texts of a pair count as one."""
    n_tokens = 1 + max(max(feature.inputs["input_ids"]) for feature in [*features, *held_out])
    model = MultinomialNB().fit(_counts(features, n_tokens), labels)
    return [int(label) for label in model.predict(_counts(held_out, n_tokens))]


def _counts(features: Sequence[Feature], n_tokens: int) -> csr_array:
    """Token counts of each text: [texts, n_tokens] int64."""
    tokens = [feature.inputs["input_ids"] for feature in features]
    bounds = np.cumsum([0, *map(len, tokens)])
    return csr_array((np.ones(bounds[-1], dtype=np.int64), np.concatenate(tokens), bounds), (len(tokens), n_tokens))


def find_columns(path: str) -> tuple[str, ...]:
    """Find the text and label columns in a common header, or in CoLA's format without a header.

    Raises:
        UserError: if the first line is neither.
    """
    names = first_names(path)
    for layout in _LAYOUTS:
        if set(layout) <= set(names):
            return layout
    if len(names) == 4 and names[1].isdecimal():
        return COLA
    found = ", ".join(map(repr, names))[:200]
    raise UserError(
        f"{shown(path)}: cannot find the text and label columns among {found}. Name them with --columns TEXT,LABEL, or "
        "by number if there is no header."
    )


def read_labelled(path: str, columns: Sequence[str], limit: int | None) -> tuple[list[TableRow], list[str]]:
    """Read labelled rows. The notes give the number of rows left out because their `gold_label` is undecided."""
    rows = read_table(path, columns)
    labelled = [row for row in rows if columns[-1] != _GOLD or _label(row) != _UNDECIDED]
    if not labelled:
        raise UserError(f"{shown(path)}: the {_GOLD} of all {len(rows)} examples is {_UNDECIDED!r}; none can be used")
    left_out = len(rows) - len(labelled)
    note = f"{shown(path)}: {left_out:,} of {len(rows):,} examples are left out, whose {_GOLD} is {_UNDECIDED!r}"
    return spread(labelled, limit), [note] if left_out else []


def _label(row: TableRow) -> str:
    label = row.cells[-1].strip()
    if not label:
        raise UserError(f"{row.place}: the label is empty")
    return label


def _features(rows: list[TableRow], ids: dict[str, int], tokenizer: Any, max_length: int) -> tuple[list[Feature], int]:
    """Encode rows; return the features and the number of truncated ones."""
    texts = [[row.cells[place] for row in rows] for place in range(len(rows[0].cells) - 1)]
    encoded = tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False)
    for row, ids_of in zip(rows, encoded["input_ids"], strict=True):
        if not ids_of:  # this tokenizer adds no special tokens
            raise UserError(f"{row.place}: the text is empty")
    features = [
        Feature({name: encoded[name][number] for name in encoded}, {"labels": ids[_label(row)]})
        for number, row in enumerate(rows)
    ]
    return features, sum(bool(encoding.overflowing) for encoding in encoded.encodings)
