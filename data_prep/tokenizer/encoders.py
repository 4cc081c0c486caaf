"""Encode texts with the tokenizers library, which defines the ids, or with the faster packages nanotoken and gigatoken.

Huge documents are cut into chunks at places where a cut does not change the ids.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil
from tokenizers import Encoding, Tokenizer

from data_prep.common.errors import UserError, one_line
from data_prep.tokenizer.long_words import Preparation, plain
from data_prep.tokenizer.token_bytes import WordRule, components

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Ids uint32 [n_tokens] of all texts in order, lengths int64 [n_texts], word starts bool [n_tokens] or None."""

_AT_SPACE = re.compile(r"(?<=\w) (?=\w)")
_AT_SPACE_OR_NEWLINE = re.compile(r"(?<=\w)[ \n](?=\w)")
# Normalizers that change each character, or a letter with its marks, without regard to other characters. Strip and
# Prepend are not among them: they treat the ends of a piece as ends of the text.
_LOCAL = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Nmt", "Precompiled", "Sequence"}

# Letters, numbers and marks that Unicode 14 does not have (https://www.unicode.org/Public/18.0.0/ucd/DerivedAge.txt),
# with unassigned characters between them. Words, and therefore ids, depend on them, and the libraries have tables of
# different versions: tokenizers 0.23 and gigatoken 0.10 of 16 and 17, pyarrow 17 to 25 of 15 and later.
_NEW_BASIC = re.compile(
    "[\u0558\u058b\u058c\u05c8\u05c9\u088f\u0897\u0b53\u0b54\u0c5c\u0cdc\u0cf3\u0ece\u1acf-\u1af0\u1c89\u1c8a\u208f"
    "\u209d-\u209f\ua7cb-\ua7cf\ua7d2\ua7d4\ua7da-\ua7f1\uab6c\uab6d]"
)
_NEW_BEYOND = re.compile(
    "[\U000105c0-\U000105f3\U000107bb-\U000107bf\U00010940-\U00010959\U00010d40-\U00010d85\U00010ec2-\U00010eff"
    "\U0001123f-\U00011241\U00011380-\U000113e2\U000116d0-\U000116e3\U00011b0a\U00011b60-\U00011b67"
    "\U00011bc0-\U00011bf9\U00011db0-\U00011df1\U00011f00-\U00011f5a\U0001246f\U00012475-\U0001247f"
    "\U00012550-\U00012686\U0001342f\U00013440-\U000143fa\U00016100-\U00016139\U00016d40-\U00016d79"
    "\U00016ea0-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018cd6-\U00018cff\U00018d09-\U00018d20"
    "\U00018d80-\U000191d2\U0001b123-\U0001b132\U0001b155\U0001b168\U0001ccf0-\U0001ccf9\U0001d127\U0001d128"
    "\U0001d250-\U0001d2d3\U0001d6a6\U0001df1f-\U0001dfff\U0001e030-\U0001e08f\U0001e4d0-\U0001e4f9"
    "\U0001e5d0-\U0001e5fa\U0001e6c0-\U0001e6ff\U0002b739-\U0002b73f\U0002b81e\U0002cea2-\U0002cead"
    "\U0002ebf0-\U0002ee5d\U00031350-\U00033479\U0003d000-\U0003fc3f]"
)


class TextEncoder:
    """Texts to ids without special tokens. Without word starts if the vocabulary determines them.

    Encodes about `chunk_characters` at a time, to bound the memory. `settings` is the JSON of the tokenizer.
    `preparation` normalizes and cuts the texts of encoders that do not.
    """

    name = ""
    chunk_characters = 1 << 22

    def __init__(self, settings: dict[str, Any], preparation: Preparation | None = None) -> None:
        self._cut, self._preparation = _cut_pattern(plain(settings)), preparation

    def __call__(self, texts: Sequence[str]) -> Arrays:
        pieces = [(owner, piece) for owner, text in enumerate(texts) for piece in self._pieces(text)]
        if len(pieces) == len(texts) and sum(len(piece) for _, piece in pieces) <= self.chunk_characters:
            return self.encode_chunk([piece for _, piece in pieces])
        results = [(owners, self.encode_chunk(chunk)) for owners, chunk in self._chunks(pieces)]
        lengths = np.zeros(len(texts), dtype=np.int64)
        for owners, (_, piece_lengths, _) in results:
            np.add.at(lengths, owners, piece_lengths)
        ids = np.concatenate([ids for _, (ids, _, _) in results])
        starts = [starts for _, (_, _, starts) in results if starts is not None]
        return ids, lengths, np.concatenate(starts) if starts else None

    def encode_chunk(self, texts: Sequence[str]) -> Arrays:
        raise NotImplementedError

    def _chunks(self, pieces: list[tuple[int, str]]) -> Iterator[tuple[list[int], list[str]]]:
        """Chunks of pieces, with the index of the text of each piece."""
        owners: list[int] = []
        chunk: list[str] = []
        size = 0
        for owner, piece in pieces:
            if size and size + len(piece) > self.chunk_characters:
                yield owners, chunk
                owners, chunk, size = [], [], 0
            owners.append(owner)
            chunk.append(piece)
            size += len(piece)
        if owners:
            yield owners, chunk

    def _pieces(self, text: str) -> Iterator[str]:
        size = self.chunk_characters
        for part in [text] if self._preparation is None else self._preparation.parts(text):
            start = 0
            while self._cut and len(part) - start > size and (match := self._cut.search(part, start + size)):
                yield part[start : match.start()]
                start = match.start()
            yield part[start:]


def _cut_pattern(settings: dict[str, Any]) -> re.Pattern[str] | None:
    """A pattern whose matches begin where a text may be cut: no pre-token crosses these positions. None: nowhere."""
    if not all(map(_is_local, components(settings["normalizer"]))) or any(
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


def _is_local(normalizer: dict[str, Any]) -> bool:
    """Whether a cut between a letter and a following space or newline cannot change what a normalizer does."""
    match normalizer:
        case {"type": "Replace", "pattern": {"String": pattern}}:
            return len(pattern) == 1 or (pattern.isascii() and not re.search(r"[\w\s]", pattern))
        case {"type": "Replace", "pattern": {"Regex": " {2,}"}}:  # of T5 and ALBERT; the cut is at a single space
            return True
    return normalizer["type"] in _LOCAL


class HuggingFaceEncoder(TextEncoder):
    """The tokenizers library. Word starts come from the rule `words`, or with "word_ids" from the library."""

    name = "tokenizers"
    chunk_characters = 1 << 20  # an Encoding takes about 30 times the memory of its text

    def __init__(
        self, tokenizer: Tokenizer, words: WordRule | str | None, preparation: Preparation | None = None
    ) -> None:
        super().__init__(json.loads(tokenizer.to_str()), preparation)
        self._words = words
        # The fast variant does not track words.
        self._encode = tokenizer.encode_batch if words == "word_ids" else tokenizer.encode_batch_fast

    def encode_chunk(self, texts: Sequence[str]) -> Arrays:
        encodings = encode_batch(self._encode, texts)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        ids = np.concatenate([np.empty(0, np.uint32), *(np.array(encoding.ids, np.uint32) for encoding in encodings)])
        if callable(self._words):
            return ids, lengths, self._words(ids, lengths)
        if self._words is None:
            return ids, lengths, None
        return ids, lengths, np.concatenate([np.empty(0, bool), *map(_word_starts, encodings)])


def encode_batch(encode: Callable[..., list[Encoding]], texts: Sequence[str]) -> list[Encoding]:
    """The texts, encoded without special tokens. Raises UserError if the tokenizer has no token for a part of them."""
    try:
        return encode(texts, add_special_tokens=False)
    except Exception as error:  # the library raises Exception
        raise UserError(
            f"The tokenizer has no token for a part of the text, and no unknown token: {one_line(str(error), 80)}. "
            "Take another, or train one with `maskwright tokenizer train`."
        ) from error


def _word_starts(encoding: Encoding) -> np.ndarray:
    words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
    return np.diff(words, prepend=-2) != 0


class NanotokenEncoder(TextEncoder):
    """WordPiece with `nanotoken`, whose cache holds at most 2^20 words, about 250 MB."""

    name = "nanotoken"
    chunk_characters = 1 << 24

    def __init__(self, settings: dict[str, Any], preparation: Preparation, safe: TextEncoder) -> None:
        from nanotoken import WordPieceTokenizer

        super().__init__(settings, preparation)
        self._encode = WordPieceTokenizer.from_json(json.dumps(without_specials(settings, drop=True))).encode_batch
        self._unknown, self._safe = settings["model"]["vocab"].get(settings["model"]["unk_token"], -1), safe
        self._may_cut = preparation.may_cut_word

    def encode_chunk(self, texts: Sequence[str]) -> Arrays:
        """The word of a long run is unknown to nanotoken; the tokenizer may cut it, so the library encodes the text."""
        ids, offsets = self._encode(texts, add_special_tokens=False, parallel=False)
        owners = np.searchsorted(offsets, np.flatnonzero(ids == self._unknown), side="right") - 1
        cut = [number for number in np.unique(owners).tolist() if self._may_cut(texts[number])]
        if not cut:
            return ids, np.diff(offsets), None
        parts = np.split(ids, offsets[1:-1])
        for number in cut:
            parts[number] = self._safe([texts[number]])[0]
        return np.concatenate(parts), np.array([len(part) for part in parts]), None


class GigatokenEncoder(TextEncoder):
    """Byte-level BPE, and SentencePiece's BPE with byte fallback, with `gigatoken`.

    gigatoken caches all words that it encodes and never removes one. When the memory of the process has grown by
    `cache_bytes`, about 100 bytes a word, a new tokenizer with an empty cache replaces it.
    """

    name = "gigatoken"
    cache_bytes = 256 << 20

    def __init__(self, settings: dict[str, Any], words: WordRule, preparation: Preparation | None = None) -> None:
        super().__init__(settings, preparation)
        self._words = words
        self._json = json.dumps(without_specials(settings, drop=True))
        self._load()

    def _load(self) -> None:
        from gigatoken import Tokenizer

        self._tokenizer = Tokenizer.from_json(self._json)
        self._memory = _memory()

    def encode_chunk(self, texts: Sequence[str]) -> Arrays:
        if _memory() > self._memory + self.cache_bytes:
            self._load()
        rows = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(rows.offsets)
        ids = np.asarray(rows.content.data)[offsets[0] : offsets[-1]]
        lengths = np.diff(offsets).astype(np.int64, copy=False)
        return ids, lengths, self._words(ids, lengths)


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def without_specials(settings: dict[str, Any], drop: bool = False) -> dict[str, Any]:
    """The JSON of a tokenizer that does not find special tokens in text that spells them.

    They get names that no text has. A BPE model keeps the names: it gives ids by merges, unless `ignore_merges` is set
    and a special token is a pre-token. With `drop`, they are no added tokens, as the fast packages need. The tokenizers
    library numbers added tokens beyond the vocabulary by their order, so it needs all of them.
    """
    model, specials = settings["model"], {token["content"] for token in settings["added_tokens"] if token["special"]}
    if model["type"] == "Unigram":
        vocab: Any = [[_hidden(token, specials), score] for token, score in model["vocab"]]
    elif model["type"] == "BPE":
        vocab, specials = model["vocab"], set()
    else:
        specials -= {model.get("unk_token")}
        vocab = {_hidden(token, specials): id for token, id in model["vocab"].items()}
    added = [
        token | {"content": _hidden(token["content"], specials)}
        for token in settings["added_tokens"]
        if not (drop and token["special"])
    ]
    return settings | {"added_tokens": added, "post_processor": None, "model": model | {"vocab": vocab}}


def _hidden(token: str, specials: set[str]) -> str:
    return f"\uffff{token}\uffff" if token in specials else token  # U+FFFF is not a character


def is_settled(text: str) -> bool:
    """Whether all libraries agree which characters of the text are letters, numbers and marks."""
    if text.isascii():
        return True
    if _NEW_BASIC.search(text):
        return False
    if len(text.encode("utf-16-le", "surrogatepass")) == 2 * len(text):  # faster than a search; true for most texts
        return True
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return _NEW_BEYOND.search(characters[characters > 0xFFFF].tobytes().decode("utf-32-le")) is None
