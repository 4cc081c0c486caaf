"""Refuse tokenizers that make a text many times longer: a few rules of a hostile one can fill the memory."""

import base64
import json
import math
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from data_prep.common.errors import UnusableInput
from data_prep.tokenizer.token_bytes import components

_MOST_GROWTH = 200  # times the characters; the normalizers of known tokenizers reach 72 in the worst case
_MOST_ADDED = 100  # tokens around a text


def check_growth(tokenizer: Tokenizer, folder: Path) -> None:
    """Raise UserError if the tokenizer in `folder` can make a text more than 200 times longer, or adds 100 tokens.

    Unicode normalization is left out: it makes no text more than 18 times longer.
    """
    growing = [*_components(tokenizer.normalizer), *_components(tokenizer.pre_tokenizer)]
    added = sum(map(_added, _components(tokenizer.post_processor)))
    if math.prod(map(_growth, growing)) > _MOST_GROWTH or added > _MOST_ADDED:
        raise UnusableInput(
            f"The tokenizer in {folder} can make a text more than {_MOST_GROWTH} times longer, or adds more than "
            f"{_MOST_ADDED} tokens to it. Use another."
        )


def _components(part: Any) -> list[dict[str, Any]]:
    return components(json.loads(part.__getstate__())) if part else []


def _growth(settings: dict[str, Any]) -> float:
    """The most characters that a character can become."""
    if settings["type"] == "Replace":
        replaced, content = settings["pattern"].get("String"), len(settings["content"])
        return max(1.0, content / len(replaced)) if replaced else 1.0 + content  # a regex can match between characters
    if settings["type"] == "Prepend":
        return 1.0 + len(settings["prepend"])
    if settings["type"] == "Precompiled":  # the size of a trie, the trie, and strings that end with NUL
        data = base64.b64decode(settings["precompiled_charsmap"])
        strings = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
        return 1.0 + max(len(string.decode(errors="replace")) for string in strings)
    return 1.0


def _added(settings: dict[str, Any]) -> int:
    """Tokens that a post-processor adds to a text. Each repetition of the text, which can double it, counts as 20."""
    if settings["type"] != "TemplateProcessing":
        return 0
    ids = {name: len(token["ids"]) for name, token in settings["special_tokens"].items()}
    pieces = [*settings["single"], *settings["pair"]]
    repeated = max(0, sum("Sequence" in piece for piece in pieces) - 3)  # of a text, and of two texts
    return 20 * repeated + sum(ids[piece["SpecialToken"]["id"]] for piece in pieces if "SpecialToken" in piece)
