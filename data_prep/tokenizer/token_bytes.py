"""The bytes of tokens, and the parts of a tokenizer's JSON."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

WordRule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Ids [n_tokens] and lengths [n_texts] to word starts bool [n_tokens]."""


class Unsupported(Exception):
    """Why a word rule or an encoder cannot be used with a tokenizer."""


def components(component: Any) -> list[dict[str, Any]]:
    """A normalizer, pre-tokenizer or post-processor, and the members of a sequence."""
    if not component:
        return []
    members = (component.get(name, []) for name in ("normalizers", "pretokenizers", "processors"))
    return [component, *(inner for member in chain(*members) for inner in components(member))]


def byte_tokens(settings: dict[str, Any]) -> dict[int, bytes]:
    """The bytes of each token of a byte-level BPE model, by id. Raises Unsupported for other models."""
    model = settings["model"]
    if model["type"] != "BPE" or model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise Unsupported(f"{model['type']} is not byte-level BPE")
    alphabet = _alphabet()
    if not alphabet.keys() <= model["vocab"].keys():
        raise Unsupported("its vocabulary lacks some of the 256 bytes")
    tokens = {
        id: bytes(alphabet[character] for character in token)
        for token, id in model["vocab"].items()
        if alphabet.keys() >= set(token)
    }
    for token in settings["added_tokens"]:
        if not token["special"] and tokens.get(token["id"]) == token["content"].encode():
            raise Unsupported(f"the token {token['content']!r} is both added and a word piece")
    return tokens


def added_ids(settings: dict[str, Any]) -> set[int]:
    """Ids of the added tokens that can occur in text: all except special ones."""
    return {token["id"] for token in settings["added_tokens"] if not token["special"]}


def _alphabet() -> dict[str, int]:
    """The byte of each character: printable ones for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


class Strings:
    """Byte strings by number, with `lengths` int64 [n], and the first three bytes in `heads` int64 [n], low first."""

    def __init__(self, strings: list[bytes]) -> None:
        self.lengths = np.array([len(string) for string in strings], dtype=np.int64)
        self.heads = np.array([int.from_bytes(string[:3], "little") for string in strings], dtype=np.int64)
        self._data = np.frombuffer(b"".join(strings), dtype=np.uint8)
        self._begin = np.cumsum(self.lengths) - self.lengths

    def joined(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated bytes of these strings, uint8 [n_bytes], and the end of each, [n_strings]."""
        lengths = self.lengths[numbers]
        ends = np.cumsum(lengths)
        shift = np.repeat(self._begin[numbers] - (ends - lengths), lengths)
        return self._data[shift + np.arange(len(shift))], ends
