"""Token ids as text for people, a token at a time or many."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


def printable(text: str, keep: str = "") -> str:
    """The text with control characters spelled out: other people's data shall not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Spelling:
    """Tokens by id: `names` for a token alone, `pieces` as they stand in text, in UTF-8.

    A piece that begins a word has its space before it. Byte-level pieces can be parts of a character.
    """

    names: dict[int, str]
    pieces: dict[int, bytes]

    def name(self, id: int) -> str:
        """A token alone, so that one sees whether it continues a word (##ing), or is white space; <ID> if unknown."""
        return self.names.get(id, f"<{id}>")

    def text(self, ids: Iterable[int]) -> str:
        """The tokens' text one after the other; bytes that make no character are replaced by U+FFFD."""
        joined = b"".join(self.pieces.get(id, f" <{id}>".encode()) for id in ids)
        return joined.decode("utf-8", errors="replace")


def open_spelling(folder: Path) -> Spelling:
    """The spelling of the tokenizer in a folder.

    WordPiece pieces are joined, byte-level ones decoded; others appear as the vocabulary has them, SentencePiece's mark
    of a space being replaced by one. Raises UserError if there is no tokenizer.json that can be read.
    """
    from data_prep.tokenizer.byte_level_words import byte_tokens
    from data_prep.tokenizer.encoder_base import Unsupported
    from data_prep.tokenizer.hf_tokenizer import load

    tokenizer = load(folder)
    settings = json.loads(tokenizer.to_str())
    names = {id: token for token, id in tokenizer.get_vocab(with_added_tokens=True).items()}
    if settings["model"]["type"] == "WordPiece":
        prefix = settings["model"]["continuing_subword_prefix"]
        words = {id: t[len(prefix) :] if prefix and t.startswith(prefix) else f" {t}" for id, t in names.items()}
        return Spelling(names, {id: word.encode() for id, word in words.items()})
    pieces = {id: token.replace("\u2581", " ").encode() for id, token in names.items()}
    with contextlib.suppress(Unsupported):
        pieces |= byte_tokens(settings)
    texts = {id: piece.decode("utf-8", errors="replace") for id, piece in pieces.items()}
    return Spelling({id: texts[id] if texts[id].strip() else name for id, name in names.items()}, pieces)
