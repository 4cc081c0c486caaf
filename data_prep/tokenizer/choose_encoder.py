"""Choose the fastest encoder that gives the output of the tokenizers library on a sample."""

import importlib.util
import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from data_prep.common.errors import UserError
from data_prep.common.processes import uninterrupted
from data_prep.format import TokenizerInfo
from data_prep.storage import spread
from data_prep.tokenizer.encoders import (
    Arrays,
    GigatokenEncoder,
    HuggingFaceEncoder,
    NanotokenEncoder,
    TextEncoder,
    encode_batch,
    is_settled,
    without_specials,
)
from data_prep.tokenizer.long_words import Preparation, plain
from data_prep.tokenizer.pattern_words import PatternWords
from data_prep.tokenizer.token_bytes import Unsupported, WordRule, components
from data_prep.tokenizer.word_starts import word_rule

PROBE_CHARACTERS = 1 << 15  # about 10 ms with the tokenizers library, at the start of each task
PROBE_TEXTS = 32
_UNICODE_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Encoders:
    """The encoders of one tokenizer, built at their first use. Create one object in a process.

    In order of speed: nanotoken (WordPiece) or gigatoken (BPE), the tokenizers library with word starts computed from
    the ids, the tokenizers library with its own word starts.
    """

    def __init__(self, tokenizer: Tokenizer, info: TokenizerInfo) -> None:
        settings = json.loads(tokenizer.to_str())
        self._specials = [" ".join(str(tokenizer.id_to_token(id)) for id in info.all_special_ids)]
        if _spells_special(tokenizer, self._specials, info):
            settings = without_specials(settings)
            tokenizer = _of(settings)
        reduced, preparation = plain(settings), Preparation(settings)
        self._rule: WordRule | None = None
        package, failure = {"WordPiece": "nanotoken", "BPE": "gigatoken"}.get(settings["model"]["type"], ""), ""
        words: WordRule | str | None = None if info.continuation_prefix is not None else "word_ids"
        if words:
            try:
                self._rule, follows_word_ids = word_rule(_of(reduced), reduced)
                words = words if follows_word_ids else self._rule
            except Unsupported as error:
                no_prefix = "its vocabulary does not show where words begin"
                failure = no_prefix if package == "nanotoken" else str(error)
        if any(part["type"] in _UNICODE_FORMS for part in components(reduced["normalizer"])):
            failure = "it knows another version of Unicode, and the normalizer of this tokenizer depends on that"
        self.reference = HuggingFaceEncoder(tokenizer, words)
        try:
            self.reference(self._specials)
        except UserError:  # no unknown token
            self._specials = []
        self.library = self.reference
        if self._rule and not isinstance(self._rule, PatternWords):  # which is right for settled texts alone
            self.library = HuggingFaceEncoder(tokenizer, self._rule, preparation)

        def build() -> TextEncoder:
            if package == "nanotoken":
                return NanotokenEncoder(reduced, preparation, self._fast.safe)
            assert self._rule is not None
            return GigatokenEncoder(reduced, self._rule, preparation)

        self._fast = _FastEncoder(package, build, preparation, self.reference, failure)

    def choose(self, sample: Sequence[str]) -> tuple[TextEncoder, str]:
        """The fastest encoder that gives the ids, lengths and word starts of the tokenizers library on a probe.

        The text says why a faster encoder is not used. It is empty if there is no faster one or its package is not
        installed. If a package raises any error, now or later, the tokenizers library encodes instead.
        """
        texts = [*filter(self._fast.is_settled, probe(sample)), *self._specials]  # for others, the difference is known
        expected = self.reference(texts)
        self._fast.safe, note = self._safe(texts, expected)
        package = self._fast.name
        if not package or importlib.util.find_spec(package) is None:
            return self._fast.safe, note
        encoded = None if self._fast.failure else self._fast.attempt(texts)
        if reason := self._fast.failure or _difference(encoded or expected, expected):
            return self._fast.safe, f"{package} is not used: {reason}"
        return self._fast, ""

    def _safe(self, texts: list[str], expected: Arrays) -> tuple[TextEncoder, str]:
        """The library with the word rule if the rule is right for the probe, else with its own word starts."""
        if self._rule is None or not _difference(self.library(texts), expected):
            return self.library, ""
        return self.reference, "word starts come from the tokenizers library: those computed from the ids differ"


class _FastEncoder(TextEncoder):
    """The encoder of a fast package until it fails. `safe` then encodes, as well as texts that are not settled."""

    def __init__(
        self, name: str, build: Callable[[], TextEncoder], preparation: Preparation, safe: TextEncoder, failure: str
    ) -> None:
        self.name, self.safe, self.failure = name, safe, failure
        self._build, self._prepares = build, preparation
        self._encoder: TextEncoder | None = None

    def __call__(self, texts: Sequence[str]) -> Arrays:
        """`safe` encodes only the texts that are not settled, since it is up to 60 times as slow."""
        takes = not self.failure and self._encoder is not None
        settled = [takes and self.is_settled(text) for text in texts]
        if all(settled):
            return (self.attempt(texts) if texts else None) or self.safe(texts)
        if not any(settled) or not (fast := self.attempt([*itertools.compress(texts, settled)])):
            return self.safe(texts)
        rest = self.safe([text for text, is_settled in zip(texts, settled, strict=True) if not is_settled])
        return _merged(fast, rest, np.array(settled))

    def is_settled(self, text: str) -> bool:
        """Whether the package knows the same letters and numbers. nanotoken does; the test of a text takes time."""
        return self._prepares.takes(text) and (self.name == "nanotoken" or is_settled(text))

    def attempt(self, texts: Sequence[str]) -> Arrays | None:
        """Encode with the package. For any error, set `failure` and return None."""
        try:
            with uninterrupted():
                self._encoder = self._encoder or self._build()
                return self._encoder(texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of Rust code is not an Exception
            self.failure = str(error).partition("\n")[0] or type(error).__name__
            return None


def _merged(first: Arrays, second: Arrays, is_first: np.ndarray) -> Arrays:
    """The results of two encoders in the order of their texts. is_first: bool [n_texts], which encoder had a text."""
    lengths = np.zeros(len(is_first), dtype=np.int64)
    lengths[is_first], lengths[~is_first] = first[1], second[1]
    of_first = np.repeat(is_first, lengths)

    def merged(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        values = np.empty(len(of_first), dtype=theirs.dtype)
        values[of_first], values[~of_first] = ours, theirs
        return values

    words = None if first[2] is None or second[2] is None else merged(first[2], second[2])
    return merged(first[0], second[0]), lengths, words


def _spells_special(tokenizer: Tokenizer, specials: list[str], info: TokenizerInfo) -> bool:
    """Whether the model, as Unigram's, gives ids of special tokens for text that spells them."""
    try:
        (encoding,) = encode_batch(tokenizer.encode_batch, specials)
    except UserError:  # no unknown token
        return False
    return any(id in info.all_special_ids and id != info.special_ids.get("unk") for id in encoding.ids)


def _of(settings: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.encode_special_tokens = True
    return tokenizer


def probe(sample: Sequence[str]) -> list[str]:
    """Beginnings of texts from all parts of the sample, at most PROBE_CHARACTERS in all.

    Half of the texts contain characters beyond ASCII if possible, and begin shortly before the first of them.
    """
    foreign = spread([text for text in sample if not text.isascii()], PROBE_TEXTS // 2)
    chosen = [*foreign, *spread([*sample], PROBE_TEXTS - len(foreign))]
    texts: list[str] = []
    left = PROBE_CHARACTERS
    for number, text in enumerate(chosen):
        share = left // (len(chosen) - number)
        start = 0
        if number < len(foreign) and (match := _NOT_ASCII.search(text)):
            start = max(0, min(match.start() - share // 4, len(text) - share))
        texts.append(text[start : start + share])
        left -= len(texts[-1])
    return texts


def _difference(encoded: Arrays, expected: Arrays) -> str:
    for name, ours, theirs in zip(("ids", "lengths", "word starts"), encoded, expected, strict=True):
        if not np.array_equal(np.asarray(ours), np.asarray(theirs)):
            return f"its {name} differ from the tokenizers library's"
    return ""
