"""Token ids as readable text."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spelling:
    """Tokens by id: `names` for single tokens, and `pieces`, their UTF-8 bytes in a text.

    A piece that begins a word begins with a space. Byte-level pieces can be parts of a character.
    """

    names: dict[int, str]
    pieces: dict[int, bytes]

    @classmethod
    def open(cls, folder: Path) -> "Spelling":
        """The spelling of the tokenizer in a folder.

        WordPiece pieces are joined, byte-level pieces are decoded, and SentencePiece's mark becomes a space. Raises
        UserError if there is no valid tokenizer.json.
        """
        from data_prep.tokenizer.hf_tokenizer import load
        from data_prep.tokenizer.token_bytes import Unsupported, byte_tokens

        tokenizer = load(folder)
        settings = json.loads(tokenizer.to_str())
        names = {id: token for token, id in tokenizer.get_vocab(with_added_tokens=True).items()}
        if settings["model"]["type"] == "WordPiece":
            prefix = settings["model"]["continuing_subword_prefix"]
            words = {id: t[len(prefix) :] if prefix and t.startswith(prefix) else f" {t}" for id, t in names.items()}
            return cls(names, {id: word.encode() for id, word in words.items()})
        pieces = {id: token.replace("\u2581", " ").encode() for id, token in names.items()}
        with contextlib.suppress(Unsupported):
            pieces |= byte_tokens(settings)
        texts = {id: piece.decode("utf-8", errors="replace") for id, piece in pieces.items()}
        return cls({id: texts[id] if texts[id].strip() else name for id, name in names.items()}, pieces)

    def name(self, id: int) -> str:
        """A single token, with signs of continuation (##ing) and visible white space; <ID> if unknown."""
        return self.names.get(id, f"<{id}>")

    def text(self, ids: Iterable[int]) -> str:
        """The text of the tokens. U+FFFD replaces bytes that are not a character."""
        joined = b"".join(self.pieces.get(id, f" <{id}>".encode()) for id in ids)
        return joined.decode("utf-8", errors="replace")
