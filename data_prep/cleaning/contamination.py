"""Documents that contain text of an evaluation set, by shared runs of words (Brown et al. 2020, GPT-3, appendix C)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from data_prep.array_files import load_uint64, save_array
from data_prep.cleaning.word_hashes import batches, ngrams, parts, word_hashes
from data_prep.compressed import DAMAGE, decompressed
from data_prep.errors import DamagedData, MissingFile, UserError
from data_prep.reading import read_bytes

NGRAM_WORDS = 13
MIN_WORDS = 8
MAX_EVALUATION_BYTES = 4 << 30
_KINDS = (".jsonl", ".txt", ".tsv")
_SLOTS_A_GRAM = 16
_MAX_WORDS = 1 << 10  # of an n-gram; a file of n-grams that says more is damaged


@dataclass(frozen=True)
class Grams:
    """The n-grams of evaluation texts: their sorted, distinct hashes, uint64, by their number of words."""

    by_words: dict[int, np.ndarray]

    def save(self, path: Path) -> None:
        """One .npy file, uint64 [n_grams, 2]: words and hash, in ascending order."""
        rows = [np.column_stack((np.full(len(g), n, np.uint64), g)) for n, g in sorted(self.by_words.items())]
        save_array(path, np.concatenate([np.empty((0, 2), np.uint64), *rows]))

    @classmethod
    def load(cls, path: Path) -> "Grams":
        """Raises DamagedData if the file is not one that `save` wrote."""
        rows = np.array(load_uint64(path))
        n, grams = rows[:, 0], rows[:, -1]
        if rows.shape[1] != 2 or ((n < 1) | (n > _MAX_WORDS)).any() or (rows[1:, 0] < rows[:-1, 0]).any():
            raise DamagedData(f"{path} is no file of evaluation n-grams; delete it and run the same command again.")
        return cls({int(length): np.unique(grams[n == length]) for length in np.unique(n)})

    @cached_property
    def filters(self) -> dict[int, np.ndarray]:
        """By words a table that says of a hash's low bits whether any n-gram has them: most lookups end there."""
        tables = {}
        for n, grams in self.by_words.items():
            table = np.zeros(1 << min(28, (_SLOTS_A_GRAM * len(grams)).bit_length()), dtype=bool)
            table[grams & np.uint64(len(table) - 1)] = True
            tables[n] = table
        return tables


def evaluation_grams(texts: Iterable[str], n: int = NGRAM_WORDS, min_words: int = MIN_WORDS) -> tuple[Grams, int]:
    """All n-grams of the texts, and how many texts are too short to be looked for.

    A text of fewer than `n` words counts whole if it has at least `min_words`; shorter ones would be found in innocent
    documents, so they are left out and counted. Raises UserError for bounds without sense.
    """
    if not 1 <= min_words <= n <= _MAX_WORDS:
        raise UserError(f"Runs of {n} words and texts of at least {min_words}: give 1 <= least <= run <= {_MAX_WORDS}.")
    found: dict[int, list[np.ndarray]] = {}
    skipped = 0
    iterator = iter(texts)
    while chunk := list(islice(iterator, 1 << 16)):
        hashes, per_text = word_hashes(chunk)
        skipped += int((per_text < min_words).sum())
        for length in range(min_words, n + 1):
            wanted = per_text >= n if length == n else per_text == length
            if wanted.any():
                grams, _ = ngrams(hashes[np.repeat(wanted, per_text)], per_text[wanted], length)
                found.setdefault(length, []).append(np.unique(grams))
    return Grams({length: np.unique(np.concatenate(many)) for length, many in sorted(found.items())}), skipped


def contaminated(texts: Sequence[str], grams: Grams) -> np.ndarray:
    """Whether a text has any of the n-grams, bool [n_texts]."""
    return np.concatenate([np.zeros(0, bool), *(_contaminated(batch, grams) for batch in batches(texts))])


def _contaminated(texts: Sequence[str], grams: Grams) -> np.ndarray:
    words = word_hashes(texts)
    found = np.zeros(len(texts), dtype=bool)
    for n, known in grams.by_words.items():
        table = grams.filters[n]
        for hashes, per_text in parts(*words, n):
            candidates, owners = ngrams(hashes, per_text, n)
            possible = np.flatnonzero(table[candidates & np.uint64(len(table) - 1)])
            candidates, owners = candidates[possible], owners[possible]
            places = np.minimum(np.searchsorted(known, candidates), len(known) - 1)
            found[owners[known[places] == candidates]] = True
    return found


def evaluation_texts(path: Path) -> Iterator[str]:
    """The texts of an evaluation file: every string in a .jsonl file's values, at any depth; every cell of a .tsv file;
    every line of a .txt file; each also with .gz or .zst. Raises UserError naming the file and line it cannot read."""
    kind = Path(path.name.removesuffix(".gz").removesuffix(".zst")).suffix
    if kind not in _KINDS:
        raise UserError(
            f"{path} is of an unknown type; evaluation files end in {', '.join(_KINDS)}, or with .gz, .zst."
        )
    for number, line in enumerate(_read(path).split(b"\n"), 1):
        try:
            if kind == ".jsonl":
                yield from _strings(orjson.loads(line)) if line.strip() else ()
            elif line.strip():
                yield from line.decode("utf-8-sig" if number == 1 else "utf-8").split("\t" if kind == ".tsv" else "\n")
        except ValueError as error:
            raise UserError(f"{path} line {number} is no valid {kind[1:]} ({error}); correct or remove it.") from error


def _strings(value: Any) -> Iterator[str]:
    """All strings in a value; without recursion, since JSON may be nested deeper than Python's stack."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            values += reversed(value.values() if isinstance(value, dict) else value)


def _read(path: Path) -> bytes:
    try:
        return decompressed(read_bytes(path, MAX_EVALUATION_BYTES), path.name)
    except MissingFile as error:
        raise UserError(f"There is no evaluation file {path}; correct its name.") from error
    except (OSError, *DAMAGE) as error:
        raise UserError(f"{path} cannot be read ({error}); get an undamaged copy.") from error
