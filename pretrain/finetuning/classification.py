"""Classes of sentences and of pairs of sentences."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

from transformers import AutoModelForSequenceClassification

from data_prep.errors import UserError
from pretrain.finetuning.batches import Feature
from pretrain.finetuning.files import Row, first_names, read_table, spread
from pretrain.finetuning.learner import Head, Learner
from pretrain.finetuning.metrics import classification_metrics
from pretrain.finetuning.settings import Settings
from pretrain.finetuning.task import cut_note, label_names, label_options

_TEXTS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"))
_LAYOUTS = tuple(
    (*texts, label) for texts, label in product((*_TEXTS, ("sentence",), ("text",)), ("label", "gold_label"))
)
COLA = ("4", "2")  # text and label, without a header


class Classification:
    """A row's text or pair of texts, and its label. The metric is accuracy; for files of CoLA's form, Matthews'."""

    without_model = "always the label that is most frequent in training"

    def __init__(self, settings: Settings, train: str, valid: str, tokenizer: Any) -> None:
        columns = settings.columns or find_columns(train)
        if len(columns) not in (2, 3):
            raise UserError(
                f"--columns {','.join(columns)}: write those of the text, of a second text if any, the label"
            )
        self.metric = "matthews" if columns == COLA else "accuracy"
        rows = spread(read_table(train, columns), settings.limit)
        held_out = spread(read_table(valid, columns), settings.limit_valid)
        labels = label_names({_label(row) for row in rows})
        if len(labels) < 2:
            raise UserError(f"{train}: all {len(rows)} examples have the label {labels[0]!r}; two labels are needed")
        ids = {label: id for id, label in enumerate(labels)}
        for row in held_out:
            if _label(row) not in ids:
                raise UserError(f"{row.place}: no training example has the label {_label(row)!r}")
        features, cut = _features(rows, ids, tokenizer, settings.max_length)
        self._features, cut_held_out = _features(held_out, ids, tokenizer, settings.max_length)
        self.notes = cut_note(cut + cut_held_out, len(rows) + len(held_out), "examples", settings.max_length)
        options = label_options(labels) | {"problem_type": "single_label_classification"}
        self.heads = [Head("", AutoModelForSequenceClassification, features, options)]
        self._classes = len(labels)
        self._gold = [ids[_label(row)] for row in held_out]
        majority = Counter(ids[_label(row)] for row in rows).most_common(1)[0][0]
        self.baseline = classification_metrics(self._gold, [majority] * len(held_out), self._classes)

    def evaluate(self, learners: Sequence[Learner]) -> dict[str, float]:
        found = learners[0].predict(self._features, lambda output: output.logits.argmax(-1))
        return classification_metrics(self._gold, [int(label) for label in found], self._classes)


def find_columns(path: str) -> tuple[str, ...]:
    """The columns of a usual header, or of CoLA's lines, which have none.

    Raises:
        UserError: if they are neither.
    """
    names = first_names(path)
    for layout in _LAYOUTS:
        if set(layout) <= set(names):
            return layout
    if len(names) == 4 and names[1].isdecimal():
        return COLA
    raise UserError(
        f"{path}, line 1: the columns of text and label are not to be told from {', '.join(map(repr, names))[:200]}; "
        "write --columns TEXT,LABEL or TEXT,TEXT,LABEL, by name or, where there is no header, by number"
    )


def _label(row: Row) -> str:
    label = row.cells[-1].strip()
    if not label:
        raise UserError(f"{row.place}: the label is empty")
    return label


def _features(rows: list[Row], ids: dict[str, int], tokenizer: Any, max_length: int) -> tuple[list[Feature], int]:
    """Features, and how many were cut."""
    texts = [[row.cells[place] for row in rows] for place in range(len(rows[0].cells) - 1)]
    encoded = tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False)
    features = [
        Feature({name: encoded[name][number] for name in encoded}, {"labels": ids[_label(row)]})
        for number, row in enumerate(rows)
    ]
    return features, sum(bool(encoding.overflowing) for encoding in encoded.encodings)
