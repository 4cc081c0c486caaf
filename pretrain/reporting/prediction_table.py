"""Read RUN/predictions.jsonl for the page: passages as text, and the model's predictions at each evaluation."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError, printable
from data_prep.common.files import open_plain
from data_prep.common.reading import UnixTime, parse_json
from data_prep.tokenizer import Spelling
from pretrain.data import BatchDocument
from pretrain.reporting.curve_charts import evenly

MOST_ANSWERS = 12_000  # predictions times evaluations on a page
_MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True)
class Asked:
    """A line with passages."""

    key: str
    passages: list[list[BatchDocument]]

    def __post_init__(self) -> None:
        for document in (document for passage in self.passages for document in passage):
            places = {prediction.place for prediction in document.predictions}
            length = len(document.original)
            if len(places) < len(document.predictions) or not max(places, default=-1) < length == len(document.seen):
                raise ValueError("predictions outside of their document")

    @property
    def count(self) -> int:
        """The number of predictions."""
        return sum(len(document.predictions) for passage in self.passages for document in passage)


@dataclass(frozen=True)
class PageAnswers:
    """A line with the predictions of one evaluation. A probability that is not finite is None."""

    key: str
    step: int
    time: UnixTime
    ids: list[list[int]]
    probabilities: list[list[float | None]]
    right: list[float | None]

    def __post_init__(self) -> None:
        lengths = [list(map(len, rows)) for rows in (self.ids, self.probabilities)]
        if lengths[0] != lengths[1] or len(self.ids) != len(self.right):
            raise ValueError("lists of different lengths")


def predictions_of(path: Path, tokenizer: Path) -> dict[str, Any] | None:
    """The newest passages and the predictions in them, in order of step; None without a prediction.

    {"passages": [[segment, ...], ...], "asked": [{"label": text, "seen": text, "kind": ...}], "steps": [...],
    "answers": [[[[text, ...], [probability, ...], right], ...], ...]}. A segment is text, or the index of a prediction
    in "asked". "answers" has for each step the answer to each prediction; `right` is the probability of the label.
    """
    asked, answers = _read(path)
    if asked is None or not answers:
        return None
    spelling = _spelling(tokenizer)
    steps = evenly(sorted(answers), max(2, MOST_ANSWERS // max(1, asked.count)))
    return {
        **_passages(asked.passages, spelling),
        "steps": steps,
        "answers": [_answers(answers[step], spelling) for step in steps],
    }


def _read(path: Path) -> tuple[Asked | None, dict[int, PageAnswers]]:
    """The newest passages, and their answers by step. Of two lines for one step, the later one is valid."""
    asked: Asked | None = None
    answers: dict[int, PageAnswers] = {}
    for record in _records(path):
        if isinstance(record, Asked):
            if asked is None or asked.key != record.key:
                asked, answers = record, {}
        elif asked is not None and record.key == asked.key and len(record.right) == asked.count:
            answers[record.step] = record
    return asked, answers


def _records(path: Path) -> Iterator[Asked | PageAnswers]:
    """Yield the valid lines. Damaged ones are skipped."""
    try:
        file = open_plain(path)
    except (OSError, ValueError):
        return
    with file:
        while line := file.readline(_MAX_LINE_BYTES):
            with contextlib.suppress(ValueError):
                yield parse_json(line, Asked if b'"passages"' in line else PageAnswers)


def _spelling(tokenizer: Path) -> Spelling:
    """The spelling of token ids. Without a usable tokenizer, ids are shown as numbers."""
    try:
        return Spelling.open(tokenizer)
    except UserError:
        return Spelling({}, {})


def _passages(passages: list[list[BatchDocument]], spelling: Spelling) -> dict[str, Any]:
    asked: list[dict[str, str]] = []
    found = []
    for passage in passages:
        segments: list[str | int] = []
        for document in passage:
            first, *others = _segments(document, spelling, asked)
            segments += [first.lstrip(" ") if isinstance(first, str) else first, *others, "\n"]
        found.append(segments[:-1])
    return {"passages": found, "asked": asked}


def _segments(document: BatchDocument, spelling: Spelling, asked: list[dict[str, str]]) -> Iterator[str | int]:
    """Yield a document's text and prediction indices in the order of its tokens. Adds each prediction to `asked`."""
    original, seen = document.original, document.seen
    kinds = {prediction.place: prediction.kind for prediction in document.predictions}
    text: list[int] = []
    for place, id in enumerate(original):
        if place not in kinds:
            if 0 < place < len(original) - 1:  # without the two special tokens that packing adds
                text.append(id)
            continue
        yield printable_text(spelling.text(text)) + (" " if spelling.text([id]).startswith(" ") else "")
        text = []
        yield len(asked)
        asked.append({"label": _word(id, spelling), "seen": _word(seen[place], spelling), "kind": kinds[place]})
    yield printable_text(spelling.text(text))


def _answers(record: PageAnswers, spelling: Spelling) -> list[list[Any]]:
    rows = zip(record.ids, record.probabilities, record.right, strict=True)
    return [[[_word(id, spelling) for id in ids], [*map(_share, shares)], _share(right)] for ids, shares, right in rows]


def _share(value: float | None) -> float | None:
    """A float also for a whole number, which may have more than 64 bits."""
    return None if value is None else float(value)


def _word(id: int, spelling: Spelling) -> str:
    return printable_text(spelling.name(id).strip(" "))


def printable_text(text: str) -> str:
    """Text without control characters."""
    return printable(text, keep="\n\t")
