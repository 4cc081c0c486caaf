"""What the encoders share: their interface, and the cutting of huge documents."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

CHUNK_CHARACTERS = 1 << 20  # encoded at once: with the tokenizers library an Encoding takes some 30 times its text

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Ids uint32 [n_tokens] of one text after the other, lengths int64 [n_texts], word starts bool [n_tokens] or None."""

WordRule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Ids [n_tokens] and lengths [n_texts] to word starts bool [n_tokens]."""


class TextEncoder(Protocol):
    """Texts to ids without special tokens; word starts are None where the vocabulary tells them."""

    name: str

    def __call__(self, texts: Sequence[str]) -> Arrays: ...


class FastEncoder(TextEncoder, Protocol):
    """One of a package that is younger than the tokenizers library."""

    def takes(self, text: str) -> bool:
        """Whether it gives the ids of the tokenizers library to a text with such characters."""
        ...


class Unsupported(Exception):
    """Why an encoder or a rule cannot serve a tokenizer."""


def encode_in_chunks(
    texts: Sequence[str],
    cut: re.Pattern[str] | None,
    encode: Callable[[Sequence[str]], Arrays],
    size: int | None = None,
) -> Arrays:
    """`encode` on at most about `size` characters at a time; a longer text is cut at the start of a match of `cut`.

    No pre-token may lie across such a place. Without `cut`, texts stay whole.
    """
    size = size or CHUNK_CHARACTERS
    if sum(map(len, texts)) <= size:
        return encode(texts)
    results = [(owners, encode(pieces)) for owners, pieces in _chunks(texts, cut, size)]
    lengths = np.zeros(len(texts), dtype=np.int64)
    for owners, (_, piece_lengths, _) in results:
        np.add.at(lengths, owners, piece_lengths)
    starts = [result[2] for _, result in results]
    return (
        np.concatenate([result[0] for _, result in results]),
        lengths,
        None if starts[0] is None else np.concatenate(starts),  # type: ignore[arg-type]
    )


def _chunks(texts: Sequence[str], cut: re.Pattern[str] | None, size: int) -> Iterator[tuple[list[int], list[str]]]:
    """Pieces of texts, with the number of the text that each belongs to."""
    owners: list[int] = []
    pieces: list[str] = []
    held = 0
    for index, text in enumerate(texts):
        for piece in _pieces(text, cut, size):
            if held and held + len(piece) > size:
                yield owners, pieces
                owners, pieces, held = [], [], 0
            owners.append(index)
            pieces.append(piece)
            held += len(piece)
    if owners:
        yield owners, pieces


def _pieces(text: str, cut: re.Pattern[str] | None, size: int) -> Iterator[str]:
    start = 0
    while cut and len(text) - start > size and (match := cut.search(text, start + size)):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


_AT_SPACE = re.compile(r"(?<=\w) (?=\w)")
_AT_SPACE_OR_NEWLINE = re.compile(r"(?<=\w)[ \n](?=\w)")


def cut_pattern(settings: dict[str, Any]) -> re.Pattern[str] | None:
    """Where a text may be cut without a change to its ids, by the tokenizer's settings; None: nowhere for certain."""
    if "Prepend" in kinds(settings["normalizer"]) or any(
        token["lstrip"] or token["rstrip"] or " " in token["content"].strip(" ") or "\n" in token["content"]
        for token in settings["added_tokens"]
        if not token["special"]
    ):
        return None
    match settings["pre_tokenizer"]:
        case {"type": "BertPreTokenizer"}:
            return _AT_SPACE_OR_NEWLINE
        case {"type": "ByteLevel", "use_regex": True, "add_prefix_space": prefix}:
            return _AT_SPACE if prefix else _AT_SPACE_OR_NEWLINE
        case {"type": "Metaspace", "split": True, "prepend_scheme": "always" | "first"}:
            return _AT_SPACE
    return None


def kinds(component: Any) -> list[str]:
    """The types of a normalizer or pre-tokenizer and, of a sequence, of its members."""
    if not component:
        return []
    members = component.get("normalizers") or component.get("pretokenizers") or []
    return [component["type"], *(kind for member in members for kind in kinds(member))]


def without_specials(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for the young packages, which take text that spells a token for it, if they know it, special or not."""
    added = [token for token in settings["added_tokens"] if not token["special"]]
    return settings | {"added_tokens": added, "post_processor": None}
