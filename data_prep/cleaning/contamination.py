"""Find documents that contain text of an evaluation set, by shared n-grams (Brown et al. 2020, GPT-3, appendix C)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.cleaning.arrays import npy_bytes
from data_prep.cleaning.word_hashes import batches, ngrams, parts, split_words
from data_prep.common.errors import DamagedData, UserError
from data_prep.common.reading import open_regular
from data_prep.storage import read_json_lines, read_lines

MIN_WORDS = 8
_KINDS = (".jsonl", ".txt", ".tsv")
_SLOTS_A_GRAM = 16
_MAX_WORDS = 1 << 10  # of an n-gram


@dataclass(frozen=True)
class Grams:
    """The n-grams of evaluation texts, as sorted, distinct hashes, uint64, by their number of words."""

    by_words: dict[int, np.ndarray]

    @classmethod
    def of_files(cls, paths: Iterable[Path], n: int, normalized: Callable[[str], str]) -> tuple["Grams", list[str]]:
        """The n-grams of evaluation files, in the Unicode form of documents, and a note if texts are too short."""
        least, texts = min(MIN_WORDS, n), (text for path in paths for text in evaluation_texts(path))
        grams, skipped = evaluation_grams(map(normalized, texts), n, least)
        note = f"{skipped:,} evaluation texts have fewer than {least} words and are not looked for"
        return grams, [note] if skipped else []

    def to_bytes(self) -> bytes:
        """The content of an .npy file, uint64 [n_grams, 2]: words and hash, in ascending order."""
        rows = [np.column_stack((np.full(len(g), n, np.uint64), g)) for n, g in sorted(self.by_words.items())]
        return npy_bytes(np.concatenate([np.empty((0, 2), np.uint64), *rows]))

    @classmethod
    def load(cls, path: Path) -> "Grams":
        """Raises DamagedData if the file is missing or has not the content of `to_bytes`."""
        remedy = "delete it and run the same command again."
        try:
            open_regular(path).close()
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except UserError as error:
            raise DamagedData(f"{error} {remedy.capitalize()}") from error
        except Exception as error:  # numpy parses the header as Python, and raises many types
            raise DamagedData(f"{path} is not a valid array of numbers; {remedy}") from error
        if not isinstance(rows, np.ndarray) or rows.dtype != "<u8" or rows.shape[1:] != (2,):
            raise DamagedData(f"{path} holds another kind of array; {remedy}")
        n, grams = np.array(rows).T
        if ((n < 1) | (n > _MAX_WORDS)).any() or (n[1:] < n[:-1]).any():
            raise DamagedData(f"{path} is not a file of evaluation n-grams; {remedy}")
        return cls({int(length): np.unique(grams[n == length]) for length in np.unique(n)})

    @cached_property
    def filters(self) -> dict[int, np.ndarray]:
        """By number of words: whether any n-gram has these low bits of its hash. This decides most lookups."""
        tables = {}
        for n, grams in self.by_words.items():
            table = np.zeros(1 << min(28, (_SLOTS_A_GRAM * len(grams)).bit_length()), dtype=bool)
            table[grams & np.uint64(len(table) - 1)] = True
            tables[n] = table
        return tables

    def occur_in(self, texts: Sequence[str]) -> np.ndarray:
        """Whether each text has any of the n-grams, bool [n_texts]."""
        return np.concatenate([np.zeros(0, bool), *map(self._occur_in, batches(texts))])

    def _occur_in(self, texts: Sequence[str]) -> np.ndarray:
        words = split_words(texts)
        hits = np.zeros(len(texts), dtype=bool)
        for n, known in self.by_words.items():
            table = self.filters[n]
            for hashes, per_text in parts(words.hashes, words.per_text, n):
                candidates, owners = ngrams(hashes, per_text, n)
                possible = np.flatnonzero(table[candidates & np.uint64(len(table) - 1)])
                candidates, owners = candidates[possible], owners[possible]
                places = np.minimum(np.searchsorted(known, candidates), len(known) - 1)
                hits[owners[known[places] == candidates]] = True
        return hits


def evaluation_grams(texts: Iterable[str], n: int, min_words: int = MIN_WORDS) -> tuple[Grams, int]:
    """All n-grams of the texts, and the number of texts that are too short.

    A text of fewer than `n` words is one n-gram if it has at least `min_words`. Shorter texts would match unrelated
    documents, so they are skipped.
    """
    by_words: dict[int, list[np.ndarray]] = {}
    skipped = 0
    iterator = iter(texts)
    while chunk := list(islice(iterator, 1 << 16)):
        hashes, _, per_text = split_words(chunk)
        skipped += int((per_text < min_words).sum())
        for length in range(min_words, n + 1):
            chosen = per_text >= n if length == n else per_text == length
            if chosen.any():
                grams, _ = ngrams(hashes[np.repeat(chosen, per_text)], per_text[chosen], length)
                by_words.setdefault(length, []).append(np.unique(grams))
    return Grams({length: np.unique(np.concatenate(many)) for length, many in sorted(by_words.items())}), skipped


def evaluation_texts(path: Path) -> Iterator[str]:
    """The texts of an evaluation file: all strings in the objects of a .jsonl file, at any depth; all cells of a .tsv
    file; all lines of a .txt file. Files may be compressed (.gz, .zst). Raises UserError for a file without text, and
    for a line that is not an object."""
    kind = Path(path.name.removesuffix(".gz").removesuffix(".zst")).suffix
    if kind not in _KINDS:
        raise UserError(
            f"{path} has an unknown type; evaluation files end in {', '.join(_KINDS)}, also with .gz or .zst."
        )
    if kind == ".jsonl":
        for _, value in read_json_lines(str(path)):
            yield from _strings(value)
        return
    for _, line in read_lines(str(path)):
        yield from line.split("\t") if kind == ".tsv" else [line]


def _strings(value: Any) -> Iterator[str]:
    """All strings in a value. Without recursion, because JSON can be nested deeper than Python's stack."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            values += reversed(value.values() if isinstance(value, dict) else value)
