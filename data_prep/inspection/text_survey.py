"""Size, words and letters of raw text before it is prepared, from a bounded sample."""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from data_prep.common.errors import UserError
from data_prep.common.urls import shown
from data_prep.sources import Options, SourceInput, examine
from data_prep.storage import Cache
from data_prep.tokenizer import CorpusSample, alphabet_size

_SAMPLE_BYTES = 4 << 20
_LONG_WORD = 16  # characters; a mean word is longer only where no spaces stand between words


@dataclass(frozen=True)
class TextSurvey:
    """Raw text. The numbers of documents, words, bytes and tokens are rough if only a sample was read.

    Attributes:
        words: what white space separates. bytes: of UTF-8.
        tokens: of subwords; of 4 characters, or of 1.5 without spaces between words.
        has_spaces: whether white space separates words, unlike in Chinese or Thai.
        cased: share of the letters that have an upper and a lower case.
        distinct: number of different words, as a share of all words of the sample.
        alphabet: number of different characters that a vocabulary needs, white space excluded.
        inputs: number by kind (jsonl, txt, parquet, hub, pair). stored_bytes: of the files.
        scale: size of all text, in samples; 1 if the sample is all of it. rejected: unreadable rows of the sample.
    """

    documents: int
    words: int
    bytes: int
    tokens: int
    has_spaces: bool
    cased: float
    distinct: float
    alphabet: int
    inputs: dict[str, int] = field(default_factory=dict)
    stored_bytes: int = 0
    scale: float = 1.0
    rejected: int = 0


def count_texts(texts: Iterable[str]) -> TextSurvey:
    """Count these texts."""
    documents = size = characters = words = letters = cased = 0
    kinds, spelled = Counter[str](), Counter[str]()
    for text in texts:
        split = text.split()
        documents, characters = documents + 1, characters + len(text)
        words, size = words + len(split), size + len(text.encode())
        kinds.update(split)
        spelled.update("".join(split))
        letters += sum(map(str.isalpha, text))
        cased += sum(a != b for a, b in zip(text.lower(), text.upper(), strict=False))
    has_spaces = characters <= _LONG_WORD * words
    tokens = round(characters / (4 if has_spaces else 1.5))
    shares = min(1.0, cased / max(1, letters)), len(kinds) / max(1, words)
    return TextSurvey(documents, words, size, tokens, has_spaces, *shares, alphabet_size(spelled))


def survey(inputs: Sequence[SourceInput], options: Options, cache: Cache) -> TextSurvey:
    """Survey the inputs of a preparation. Only the beginnings of much text are read; the rest counts as equal.

    If files are compressed, the compression of the sample by zlib gives the size of their text. Raises UserError if an
    input cannot be read, or there is no text.
    """
    sample = CorpusSample(inputs, options, _SAMPLE_BYTES, cache)
    counts, rejected, cut = count_texts(sample), sample.rejected, sample.cut
    if not counts.words:
        reason = f": {sample.first_reason}" if rejected else ""
        raise UserError(f"{shown(inputs[0].location)}: no text{reason}. Name other files, or correct --text-field.")
    stored = sum(examine(given, cache, options).bytes for given in inputs)
    factor = 1.0
    if any(not given.location.endswith((".txt", ".jsonl")) for given in inputs):
        some = "".join(islice(sample, 100)).encode()
        factor = len(some) / len(zlib.compress(some))
    scale = max(1.0, stored * factor / counts.bytes) if cut else 1.0
    scaled = {name: round(getattr(counts, name) * scale) for name in ("documents", "words", "bytes", "tokens")}
    kinds = dict(Counter(given.kind for given in inputs))
    return replace(counts, **scaled, inputs=kinds, stored_bytes=stored, scale=scale, rejected=rejected)
