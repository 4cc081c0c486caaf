"""RUN/predictions.jsonl for the page: passages as text, and what the model said in them at each evaluation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from data_prep.errors import UserError
from launchers.spelling import Spelling, open_spelling, printable

MOST_ANSWERS = 12_000  # on a page: evaluations times predictions


def predictions_of(path: Path, tokenizer: Path) -> dict[str, Any] | None:
    """The passages that were asked last, and the answers in order of step; None if there are none.

    {"passages": [[segment, ...], ...], "asked": [{"label": text, "seen": text, "kind": ...}], "steps": [...],
    "answers": [[[[text, ...], [probability, ...], right], ...], ...]}: a segment is text, or the number of a
    prediction; `answers` has for each step those of each prediction, `right` being the probability of the label.
    """
    asked, answers = _read(path)
    if asked is None or not answers:
        return None
    spelling = _spelling(tokenizer)
    steps = _some(sorted(answers), max(2, MOST_ANSWERS // max(1, len(answers[min(answers)]["right"]))))
    try:
        return {
            **_passages(asked["passages"], spelling),
            "steps": steps,
            "answers": [_answers(answers[step], spelling) for step in steps],
        }
    except (KeyError, TypeError, IndexError, ValueError):  # a file of something else
        return None


def _read(path: Path) -> tuple[dict[str, Any] | None, dict[int, dict[str, Any]]]:
    """What was asked last, and the answers to it by step, the later line of a step being the valid one."""
    asked: dict[str, Any] | None = None
    answers: dict[int, dict[str, Any]] = {}
    for record in _records(path):
        if "passages" in record:
            if asked is None or asked.get("key") != record.get("key"):
                asked, answers = record, {}
        elif asked is not None and record.get("key") == asked.get("key") and isinstance(record.get("step"), int):
            answers[record["step"]] = record
    return asked, answers


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below)
    except OSError:
        return
    with file:
        for line in file:
            try:
                record = orjson.loads(line)
            except ValueError:  # torn
                continue
            if isinstance(record, dict):
                yield record


def _spelling(tokenizer: Path) -> Spelling:
    """Ids stand for themselves where a run has no tokenizer to decode with."""
    try:
        return open_spelling(tokenizer)
    except UserError:
        return Spelling({}, {})


def _some(steps: list[int], most: int) -> list[int]:
    if len(steps) <= most:
        return steps
    return [steps[i] for i in np.linspace(0, len(steps) - 1, most).astype(int)]


def _passages(passages: list[list[dict[str, Any]]], spelling: Spelling) -> dict[str, Any]:
    asked: list[dict[str, str]] = []
    found = []
    for passage in passages:
        segments: list[str | int] = []
        for document in passage:
            first, *others = _segments(document, spelling, asked)
            segments += [first.lstrip(" ") if isinstance(first, str) else first, *others, "\n"]
        found.append(segments[:-1])
    return {"passages": found, "asked": asked}


def _segments(document: dict[str, Any], spelling: Spelling, asked: list[dict[str, str]]) -> Iterator[str | int]:
    """A document as text, in the order of its tokens; what is predicted is added to `asked`."""
    original, seen = document["original"], document["seen"]
    kinds = {prediction["place"]: prediction["kind"] for prediction in document["predictions"]}
    text: list[int] = []
    for place, id in enumerate(original):
        if place not in kinds:
            if 0 < place < len(original) - 1:  # but for the two that packing adds
                text.append(id)
            continue
        yield shown(spelling.text(text)) + (" " if spelling.text([id]).startswith(" ") else "")
        text = []
        yield len(asked)
        asked.append({"label": _word(id, spelling), "seen": _word(seen[place], spelling), "kind": kinds[place]})
    yield shown(spelling.text(text))


def _answers(record: dict[str, Any], spelling: Spelling) -> list[list[Any]]:
    rows = zip(record["ids"], record["probabilities"], record["right"], strict=True)
    return [[[_word(id, spelling) for id in ids], probabilities, right] for ids, probabilities, right in rows]


def _word(id: int, spelling: Spelling) -> str:
    return shown(spelling.name(id).strip(" "))


def shown(text: str) -> str:
    """Text without control characters."""
    return printable(text, keep="\n\t")
