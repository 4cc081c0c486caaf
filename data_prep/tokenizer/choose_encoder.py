"""Choose the fastest encoder that gives the output of the tokenizers library on a sample."""

import importlib.util
import json
import re
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer

from data_prep.format import TokenizerInfo
from data_prep.processes import uninterrupted
from data_prep.tokenizer.encoders import (
    Arrays,
    GigatokenEncoder,
    HuggingFaceEncoder,
    NanotokenEncoder,
    TextEncoder,
    is_settled,
)
from data_prep.tokenizer.word_starts import Unsupported, WordRule, word_rule

PROBE_CHARACTERS = 1 << 15  # about 10 ms with the tokenizers library, at the start of each task
PROBE_TEXTS = 32
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Encoders:
    """The encoders of one tokenizer, built at their first use. Create one object in a process.

    In order of speed: nanotoken (WordPiece) or gigatoken (BPE), the tokenizers library with word starts computed from
    the ids, the tokenizers library with its own word starts.
    """

    def __init__(self, tokenizer: Tokenizer, info: TokenizerInfo) -> None:
        self._settings = json.loads(tokenizer.to_str())
        self._specials = " ".join(str(tokenizer.id_to_token(id)) for id in info.all_special_ids)
        self._package = {"WordPiece": "nanotoken", "BPE": "gigatoken"}.get(self._settings["model"]["type"], "")
        self._rule: WordRule | None = None
        self._failure = ""
        self._fast: TextEncoder | None = None
        words: WordRule | str | None = None if info.continuation_prefix is not None else "word_ids"
        if words:
            try:
                self._rule, follows_word_ids = word_rule(tokenizer, self._settings)
                words = words if follows_word_ids else self._rule
            except Unsupported as error:
                no_prefix = "its vocabulary does not show where words begin"
                self._failure = no_prefix if self._package == "nanotoken" else str(error)
        self.reference = HuggingFaceEncoder(tokenizer, words)
        self.library = HuggingFaceEncoder(tokenizer, self._rule) if self._rule else self.reference

    def choose(self, sample: Sequence[str]) -> tuple[TextEncoder, str]:
        """The fastest encoder that gives the ids, lengths and word starts of the tokenizers library on a probe.

        The text says why a faster encoder is not used. It is empty if there is no faster one or its package is not
        installed. If a package raises any error, now or later, the tokenizers library encodes instead.
        """
        texts = [*filter(is_settled, probe(sample)), self._specials]  # for other texts, the difference is known
        expected = self.reference(texts)
        safe, note = self._safe(expected)
        if not self._package or importlib.util.find_spec(self._package) is None:
            return safe, note
        reason = self._failure or self._check_fast(texts, expected)
        if reason or self._fast is None:
            return safe, f"{self._package} is not used: {reason}"
        return _Guarded(self._fast, safe, self._fail), ""

    def _safe(self, expected: Arrays) -> tuple[TextEncoder, str]:
        """The library with the word rule if the rule is right for the probe, else with its own word starts."""
        ids, lengths, starts = expected
        if self._rule is None or (starts is not None and np.array_equal(self._rule(ids, lengths), starts)):
            return self.library, ""
        return self.reference, "word starts come from the tokenizers library: those computed from the ids differ"

    def _check_fast(self, texts: Sequence[str], expected: Arrays) -> str:
        """Why the fast package cannot be used; empty if its output is as expected."""
        try:
            with uninterrupted():
                self._fast = self._fast or self._build()
                encoded = self._fast(texts)
            return _difference(encoded, expected)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of Rust code is not an Exception
            self._fail(error)
            return self._failure

    def _build(self) -> TextEncoder:
        if self._package == "nanotoken":
            return NanotokenEncoder(self._settings)
        assert self._rule is not None
        return GigatokenEncoder(self._settings, self._rule)

    def _fail(self, error: BaseException) -> None:
        self._failure = str(error).partition("\n")[0] or type(error).__name__


class _Guarded(TextEncoder):
    """A fast encoder until it fails, then `safe`, which also encodes texts that the fast one does not take."""

    def __init__(self, fast: TextEncoder, safe: TextEncoder, on_failure: Callable[[BaseException], None]) -> None:
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
    """Beginnings of texts from all parts of the sample, at most PROBE_CHARACTERS in all.

    Half of the texts contain characters beyond ASCII if possible, and begin shortly before the first of them.
    """
    foreign = _spread([text for text in sample if not text.isascii()], PROBE_TEXTS // 2)
    chosen = [*foreign, *_spread(sample, PROBE_TEXTS - len(foreign))]
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


def _spread(texts: Sequence[str], count: int) -> list[str]:
    count = min(count, len(texts))
    return [texts[number * len(texts) // count] for number in range(count)]


def _difference(encoded: Arrays, expected: Arrays) -> str:
    for name, ours, theirs in zip(("ids", "lengths", "word starts"), encoded, expected, strict=True):
        if not np.array_equal(np.asarray(ours), np.asarray(theirs)):
            return f"its {name} differ from the tokenizers library's"
    return ""
