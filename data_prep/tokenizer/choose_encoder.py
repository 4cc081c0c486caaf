"""Choosing the fastest encoder whose output is proven equal, on a probe, to the tokenizers library's."""

import importlib.util
import json
import re
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer

from data_prep.format import TokenizerInfo
from data_prep.processes import uninterrupted
from data_prep.tokenizer.encoder_base import Arrays, FastEncoder, TextEncoder, Unsupported, WordRule
from data_prep.tokenizer.gigatoken_encoder import GigatokenEncoder
from data_prep.tokenizer.huggingface_encoder import HuggingFaceEncoder
from data_prep.tokenizer.nanotoken_encoder import NanotokenEncoder
from data_prep.tokenizer.unicode_versions import is_settled
from data_prep.tokenizer.word_starts import word_rule

PROBE_CHARACTERS = 1 << 15  # some 10 ms with the tokenizers library, at the beginning of every task
PROBE_TEXTS = 32
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Encoders:
    """The encoders of one tokenizer, each built once, when it is first needed; keep one object a process.

    In order of speed: nanotoken (WordPiece) or gigatoken (BPE), the tokenizers library with word starts told from the
    ids, the tokenizers library alone.
    """

    def __init__(self, tokenizer: Tokenizer, info: TokenizerInfo) -> None:
        self._settings = json.loads(tokenizer.to_str())
        self._specials = " ".join(str(tokenizer.id_to_token(id)) for id in info.all_special_ids)
        self._package = {"WordPiece": "nanotoken", "BPE": "gigatoken"}.get(self._settings["model"]["type"], "")
        self._prefixed = info.continuation_prefix is not None
        self._rule: WordRule | None = None
        follows_word_ids, self._failure = True, ""
        if not self._prefixed:
            try:
                self._rule, follows_word_ids = word_rule(tokenizer, self._settings)
            except Unsupported as error:
                no_prefix = "its vocabulary does not tell where words begin"
                self._failure = no_prefix if self._package == "nanotoken" else str(error)
        self._reference = HuggingFaceEncoder(
            tokenizer, None if self._prefixed else "word_ids" if follows_word_ids else self._rule
        )
        self._library = HuggingFaceEncoder(tokenizer, self._rule) if self._rule else self._reference
        self._fast: FastEncoder | None = None

    def choose(self, sample: Sequence[str]) -> tuple[TextEncoder, str]:
        """The fastest encoder with the tokenizers library's ids, lengths and word starts on a probe of `sample`.

        The text says why a faster one was left out, and is empty if none was. A package that is not installed is no
        reason. Whatever the young packages raise is caught, also when the encoder is used: the tokenizers library
        then encodes the batch.
        """
        texts = [*filter(is_settled, probe(sample)), self._specials]  # of others it is known what differs
        expected = self._reference(texts)
        safe, note = self._safe(expected)
        if not self._package or importlib.util.find_spec(self._package) is None:
            return safe, note
        reason = self._failure or self._unproven(texts, expected)
        if reason or self._fast is None:
            return safe, f"{self._package} is not used: {reason}"
        return _Guarded(self._fast, safe, self._fail), ""

    def _safe(self, expected: Arrays) -> tuple[TextEncoder, str]:
        """The tokenizers library, asked for words only where the ids do not tell them."""
        ids, lengths, starts = expected
        if self._rule is None or (starts is not None and np.array_equal(self._rule(ids, lengths), starts)):
            return self._library, ""
        return self._reference, "word starts are asked of the tokenizers library: those told from the ids differ"

    def _unproven(self, texts: Sequence[str], expected: Arrays) -> str:
        try:
            with uninterrupted():
                self._fast = self._fast or self._build()
                found = self._fast(texts)
            return _difference(found, expected)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of Rust code is no Exception
            self._fail(error)
            return self._failure

    def _build(self) -> FastEncoder:
        if self._package == "nanotoken":
            return NanotokenEncoder(self._settings)
        assert self._rule is not None
        return GigatokenEncoder(self._settings, self._rule)

    def _fail(self, error: BaseException) -> None:
        self._failure = str(error).partition("\n")[0] or type(error).__name__


class _Guarded:
    """A young package's encoder until it fails, then the other; which also has texts that the package does not take."""

    def __init__(self, fast: FastEncoder, safe: TextEncoder, on_failure: Callable[[BaseException], None]) -> None:
        self.name = fast.name
        self._fast, self._safe, self._on_failure = fast, safe, on_failure
        self._failed = False

    def __call__(self, texts: Sequence[str]) -> Arrays:
        if self._failed or not all(map(self._fast.takes, texts)):
            return self._safe(texts)
        try:
            with uninterrupted():
                return self._fast(texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._on_failure(error)
            self._failed = True
            return self._safe(texts)


def probe(sample: Sequence[str]) -> list[str]:
    """Beginnings of texts spread over the sample, PROBE_CHARACTERS in all at most; of half of them, those with
    characters beyond ASCII, the part from a little before the first such character on."""
    foreign = [text for text in sample if not text.isascii()]
    chosen = _spread(foreign, PROBE_TEXTS // 2)
    chosen += _spread(sample, PROBE_TEXTS - len(chosen))
    texts: list[str] = []
    left = PROBE_CHARACTERS
    for number, text in enumerate(chosen):
        share = left // (len(chosen) - number)
        start = 0
        if number < min(len(foreign), PROBE_TEXTS // 2) and (match := _NOT_ASCII.search(text)):
            start = max(0, min(match.start() - share // 4, len(text) - share))
        texts.append(text[start : start + share])
        left -= len(texts[-1])
    return texts


def _spread(texts: Sequence[str], count: int) -> list[str]:
    count = min(count, len(texts))
    return [texts[number * len(texts) // count] for number in range(count)]


def _difference(found: Arrays, expected: Arrays) -> str:
    for name, ours, theirs in zip(("ids", "lengths", "word starts"), found, expected, strict=True):
        if (ours is None) != (theirs is None) or (
            ours is not None and theirs is not None and not np.array_equal(ours, theirs)
        ):
            return f"its {name} differ from the tokenizers library's"
    return ""
