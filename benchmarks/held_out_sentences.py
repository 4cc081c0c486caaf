"""Sentences of a training file that are held out of it, with all that is part of them, to choose and measure by."""

import random
from collections.abc import Iterator, Sequence

Row = tuple[str, str]
Text = tuple[str, ...]


def split(rows: Sequence[Row], count: int, folds: int, seed: int = 0) -> list[tuple[list[Row], list[Row]]]:
    """(to train on, held out) of rows (text, label), as SST-2's, whose training file has the phrases of its sentences.

    Whole sentences are texts that are part of no other one. First `count` of them are held out, then each of `folds`
    equal parts of the others, so that no sentence is held out twice. What is left to train on is part of none that is
    held out, so that these are as new to a model as those of the development set.
    """
    texts = {_words(text) for text, _ in rows}
    inner = {part for text in texts for part in _parts(text) if part != text}
    whole, draw = sorted(texts - inner), random.Random(seed)
    first = draw.sample(whole, count)
    others = sorted({*whole}.difference(first))
    draw.shuffle(others)
    return [_without(rows, set(chosen)) for chosen in (first, *(others[number::folds] for number in range(folds)))]


def _without(rows: Sequence[Row], chosen: set[Text]) -> tuple[list[Row], list[Row]]:
    told = {part for text in chosen for part in _parts(text)}
    return (
        [row for row in rows if _words(row[0]) not in told],
        [row for row in rows if _words(row[0]) in chosen],
    )


def _words(text: str) -> Text:
    return tuple(text.split())


def _parts(text: Text) -> Iterator[Text]:
    return (text[first:last] for first in range(len(text)) for last in range(first + 1, len(text) + 1))
