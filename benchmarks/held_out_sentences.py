"""Sentences of a training file that are held out of it, with all that is part of them, to choose settings by."""

import random
from collections.abc import Iterator, Sequence

Row = tuple[str, str]


def split(rows: Sequence[Row], count: int, seed: int = 0) -> tuple[list[Row], list[Row]]:
    """(to train on, held out) of rows (text, label), as SST-2's, whose training file has the phrases of its sentences.

    Held out are `count` texts that are part of no other one. What is left to train on is part of none of these, so that
    they are as new to a model as those of the development set.
    """
    texts = {_words(text) for text, _ in rows}
    inner = {part for text in texts for part in _parts(text) if part != text}
    whole = sorted(texts - inner)
    chosen = set(random.Random(seed).sample(whole, count))
    told = {part for text in chosen for part in _parts(text)}
    return (
        [row for row in rows if _words(row[0]) not in told],
        [row for row in rows if _words(row[0]) in chosen],
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _parts(text: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (text[first:last] for first in range(len(text)) for last in range(first + 1, len(text) + 1))
