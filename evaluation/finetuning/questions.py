"""Extractive question answering, with or without unanswerable questions (SQuAD 1.1 and 2.0)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import torch
from torch import Tensor
from transformers import AutoModelForQuestionAnswering

from data_prep.common.errors import UserError, one_line
from data_prep.common.reading import shown_path, typed
from data_prep.common.urls import shown
from data_prep.storage import load_text, spread
from evaluation.finetuning.heads import Example, FinetuneSettings, Head, HeadOutputs
from evaluation.finetuning.metrics import question_metrics

_LONGEST_ANSWER = 30  # tokens
_SHORTEST = 32  # tokens of a window


@dataclass(frozen=True)
class Question:
    """A question. answers: (text, first character in the context); empty if it is unanswerable."""

    text: str
    context: str
    answers: list[tuple[str, int]]


@dataclass(frozen=True)
class QuestionWindow:
    """A part of a question's context. offsets: characters of each token in the context, None for other tokens."""

    question: int
    example: Example
    offsets: list[tuple[int, int] | None]


class Questions:
    """Predict the begin and end of the answer. The metric is F1.

    Contexts longer than `max_length` are split into windows that overlap by a third of it. As in Devlin et al. (2019),
    [CLS] is the answer to an unanswerable question. It is predicted if its lowest score over the windows exceeds the
    score of the best span, and only if the training questions include unanswerable ones.
    """

    metric = "f1"
    without_model = "no question is answered"

    def __init__(self, settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> None:
        if settings.max_length < _SHORTEST:
            raise UserError(
                f"windows of {settings.max_length} tokens are too short for questions; {_SHORTEST} at least"
            )
        if settings.columns:
            raise UserError("--columns is not for questions, whose files are SQuAD's JSON")
        questions = spread(read_questions(train), settings.limit)
        self._questions = spread(read_questions(valid), settings.limit_valid)
        self._may_refuse = any(not question.answers for question in questions)
        windows = _windows(questions, tokenizer, settings.max_length)
        self.windows = _windows(self._questions, tokenizer, settings.max_length)
        examples, predicted = ([window.example for window in part] for part in (windows, self.windows))
        self.heads = [Head("", AutoModelForQuestionAnswering, examples, lambda _: predicted, _scores)]
        counts = f"{len(questions):,} questions to train on and {len(self._questions):,} held out"
        self.notes = [f"{counts}, in {len(windows):,} and {len(self.windows):,} windows"]
        self._gold = [[text for text, _ in question.answers] for question in self._questions]
        self.baseline = question_metrics(self._gold, [""] * len(self._gold))

    def evaluate(self, outputs: Sequence[HeadOutputs]) -> dict[str, float]:
        return question_metrics(self._gold, self._answers(outputs[0]))

    def _answers(self, scores: HeadOutputs) -> list[str]:
        best = [(-np.inf, "")] * len(self._questions)
        refusal = [np.inf] * len(self._questions)
        for window, score in zip(self.windows, scores, strict=True):
            number = window.question
            refusal[number] = min(refusal[number], float(score[0].sum()))
            value, begin, end = best_span(score, window.offsets)
            if value > best[number][0]:
                best[number] = value, self._questions[number].context[begin:end]
        return [
            "" if self._may_refuse and none > value else text for none, (value, text) in zip(refusal, best, strict=True)
        ]


def best_span(scores: np.ndarray, offsets: list[tuple[int, int] | None]) -> tuple[float, int, int]:
    """The highest sum of a begin score and an end score, and the characters of this span.

    Args:
        scores: float [tokens, 2].
    """
    context = np.array([place is not None for place in offsets])
    begins, ends = np.where(context[:, None], scores, -np.inf).T
    sums = begins[:, None] + ends[None, :]
    distance = np.arange(len(context))[None, :] - np.arange(len(context))[:, None]
    sums[(distance < 0) | (distance >= _LONGEST_ANSWER)] = -np.inf
    first, last = np.unravel_index(np.argmax(sums), sums.shape)
    begin, end = offsets[first], offsets[last]
    return (float(sums[first, last]), begin[0], end[1]) if begin and end else (-np.inf, 0, 0)


def read_questions(path: str) -> list[Question]:
    """Read questions in SQuAD's format.

    Raises UserError if the file has another format, or an answer is not at its stated position.
    """
    found: list[Question] = []
    name, place = shown_path(shown(path)), "data"
    try:
        whole = orjson.loads(load_text(path))
        for a, article in enumerate(whole["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                for q, entry in enumerate(paragraph["qas"]):
                    place = f"data[{a}].paragraphs[{p}].qas[{q}]"
                    found.append(_question(f"{name}, {place}", entry, paragraph["context"]))
    except orjson.JSONDecodeError as error:
        raise UserError(f"{name}, line {error.lineno} is not JSON. Questions are in SQuAD's form.") from None
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        reason = str(error) if type(error) is ValueError else repr(error)
        raise UserError(f"{name} is not of SQuAD's form: at or after {place}, {one_line(reason, 100)}") from None
    if not found:
        raise UserError(f"{name} has no questions")
    return found


def _question(place: str, entry: dict[str, Any], context: Any) -> Question:
    """Raise ValueError for a value of another type."""
    typed(str, context)
    answers = [(typed(str, answer["text"]), typed(int, answer["answer_start"])) for answer in entry["answers"]]
    is_impossible = typed(bool | None, entry.get("is_impossible"))
    for text, begin in answers:
        if context[begin : begin + len(text)] != text or not text.strip():
            raise UserError(f"{place}: the answer {text[:80]!r} is not at character {begin} of the context")
    if not answers and not is_impossible:
        raise UserError(f"{place} has no answers, and is not marked as is_impossible")
    return Question(typed(str, entry["question"]).strip(), context, [] if is_impossible else answers)


def _windows(questions: list[Question], tokenizer: Any, max_length: int) -> list[QuestionWindow]:
    """Split contexts into windows. A question longer than half a window is truncated."""
    texts = [question.text for question in questions]
    cut = tokenizer(
        texts, add_special_tokens=False, truncation=True, max_length=max_length // 2, return_offsets_mapping=True
    )
    texts = [
        text[: offsets[-1][1] if offsets else 0] for text, offsets in zip(texts, cut["offset_mapping"], strict=True)
    ]
    encoded = tokenizer(
        texts,
        [question.context for question in questions],
        truncation="only_second",
        max_length=max_length,
        stride=max_length // 3,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
    )
    windows = []
    for number, question in enumerate(encoded["overflow_to_sample_mapping"]):
        kinds, places = encoded.sequence_ids(number), encoded["offset_mapping"][number]
        offsets = [place if kind == 1 else None for kind, place in zip(kinds, places, strict=True)]
        inputs = {name: encoded[name][number] for name in ("input_ids", "token_type_ids") if name in encoded}
        begin, end = _target(questions[question], offsets)
        example = inputs | {"start_positions": begin, "end_positions": end}
        windows.append(QuestionWindow(question, example, offsets))
    return windows


def _target(question: Question, offsets: list[tuple[int, int] | None]) -> tuple[int, int]:
    """First and last token of the first answer; (0, 0), that is [CLS], if the window lacks part of it."""
    if question.answers:
        text, start = question.answers[0]
        begin, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
        inside = [(n, *o) for n, o in enumerate(offsets) if o and o[1] > begin and o[0] < end and o[0] < o[1]]
        if inside and inside[0][1] <= begin and inside[-1][2] >= end:
            return inside[0][0], inside[-1][0]
    return 0, 0


def _scores(logits: tuple[Tensor, ...]) -> Tensor:
    """Scores of a begin and an end at each token: float32 [batch, longest, 2]."""
    return torch.stack(logits[:2], dim=-1).float()
