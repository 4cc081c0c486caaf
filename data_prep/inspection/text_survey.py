"""Size, words and letters of raw text before it is prepared, from a bounded sample."""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from data_prep.cleaning import count_words
from data_prep.common.errors import UserError
from data_prep.common.urls import shown
from data_prep.sources import Options, SourceInput, examine
from data_prep.storage import Cache
from data_prep.tokenizer import CorpusSample, alphabet_size

_SAMPLE_BYTES = 4 << 20
_LONG_WORD = 16  # characters; a mean word is longer only where no spaces stand between words


@dataclass(frozen=True)
class TextSample:
    """Counts of a sample of texts. Words are what white space separates.

    Attributes:
        cased: share of the letters that have an upper and a lower case.
        distinct: number of different words, as a share of all words.
        alphabet: number of different characters that a vocabulary needs, white space excluded.
    """

    documents: int
    bytes: int
    characters: int
    words: int
    cased: float
    distinct: float
    alphabet: int

    @property
    def has_spaces(self) -> bool:
        """Whether white space separates words, unlike in Chinese or Thai."""
        return self.characters <= _LONG_WORD * self.words


@dataclass(frozen=True)
class TextSurvey:
    """Raw text. inputs: number by kind (jsonl, txt, parquet, hub, pair). stored_bytes: of the files.

    scale: size of all text, in samples; 1 if the sample is all of it. If files are compressed, it is the compression
    of the sample by zlib that gives their text. rejected: unreadable rows of the sample.
    """

    inputs: dict[str, int]
    stored_bytes: int
    sample: TextSample
    scale: float
    rejected: int

    @property
    def documents(self) -> int:
        """A rough number of documents of all text."""
        return round(self.sample.documents * self.scale)

    @property
    def words(self) -> int:
        """A rough number of words of all text."""
        return round(self.sample.words * self.scale)

    @property
    def bytes(self) -> int:
        """A rough number of UTF-8 bytes of all text."""
        return round(self.sample.bytes * self.scale)

    @property
    def tokens(self) -> int:
        """A rough number of subword tokens: of 4 characters, or of 1.5 without spaces between words."""
        return round(self.sample.characters * self.scale / (4 if self.sample.has_spaces else 1.5))


def count_texts(texts: Iterable[str]) -> TextSample:
    """Count a sample of texts."""
    documents = size = characters = words = letters = cased = 0
    kinds, spelled = Counter[str](), Counter[str]()
    for text in texts:
        numbers, sizes = count_words([text])
        documents, characters = documents + 1, characters + len(text)
        words, size = words + int(numbers[0]), size + int(sizes[0])
        kinds.update(text.split())
        spelled.update("".join(text.split()))
        letters += sum(map(str.isalpha, text))
        cased += sum(a != b for a, b in zip(text.lower(), text.upper(), strict=False))
    shares = min(1.0, cased / max(1, letters)), len(kinds) / max(1, words)
    return TextSample(documents, size, characters, words, *shares, alphabet_size(spelled))


def survey(inputs: Sequence[SourceInput], options: Options, cache: Cache) -> TextSurvey:
    """Survey the inputs of a preparation. Only the beginnings of much text are read; the rest counts as equal.

    Raises:
        UserError: if an input cannot be read, or there is no text.
    """
    sample = CorpusSample(inputs, options, _SAMPLE_BYTES, cache)
    counts, rejected, cut = count_texts(sample), sample.rejected, sample.cut
    if not counts.words:
        reason = f": {sample.first_reason}" if rejected else ""
        raise UserError(f"{shown(inputs[0].location)}: no text{reason}. Name other files, or correct --text-field.")
    stored = [examine(given, cache, options).bytes for given in inputs]
    factor = 1.0
    if any(not given.location.endswith((".txt", ".jsonl")) for given in inputs):
        some = "".join(islice(sample, 100)).encode()
        factor = len(some) / len(zlib.compress(some))
    scale = max(1.0, sum(stored) * factor / counts.bytes) if cut else 1.0
    return TextSurvey(dict(Counter(given.kind for given in inputs)), sum(stored), counts, scale, rejected)
