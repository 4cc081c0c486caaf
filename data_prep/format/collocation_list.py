"""The file of a collocation list, which `maskwright prep collocations` writes and masking reads; and how it is matched.

A parquet table, so that any tool shows it: a row for each n-gram, with the token ids of its words, count, PMI and text.
The schema's metadata has, under `maskwright`, a JSON object with format, version, tokenizer, and how it was made.
"""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DamagedData, MissingFile, UserError, one_line
from data_prep.files import atomic_writer
from data_prep.reading import open_regular, parse_json, shown_path

FORMAT, FORMAT_VERSION = "maskwright-collocations", 1
MAX_WORDS = 8
_KEY = b"maskwright"


@dataclass(frozen=True)
class Collocations:
    """N-grams of 2 to MAX_WORDS words each.

    tokens [T] int64: their ids, one n-gram after the other. word_sizes [W]: tokens of each word.
    n_words [C]: words of each n-gram.
    tokenizer_sha256: of the tokenizer whose ids these are.
    """

    tokens: NDArray[np.int64]
    word_sizes: NDArray[np.int64]
    n_words: NDArray[np.int64]
    tokenizer_sha256: str

    @functools.cached_property
    def digest(self) -> str:
        """A SHA-256 of what decides how a text is cut: the n-grams, and not their counts."""
        found = hashlib.sha256(self.tokenizer_sha256.encode())
        for array in (self.n_words, self.word_sizes, self.tokens):
            found.update(array.astype("<i8").tobytes())
        return found.hexdigest()


def write_collocations(path: Path, found: Collocations, columns: dict[str, Any], made: dict[str, Any]) -> None:
    """Write a list atomically; `columns` have a value for each n-gram, `made` tells how it was made, as JSON values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def offsets(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)

    words = pa.ListArray.from_arrays(offsets(found.word_sizes), pa.array(found.tokens.astype(np.uint32)))
    ngrams = pa.ListArray.from_arrays(offsets(found.n_words), words)
    about = {"format": FORMAT, "format_version": FORMAT_VERSION, "tokenizer_sha256": found.tokenizer_sha256, **made}
    table = pa.table({"words": ngrams, **columns}).replace_schema_metadata({_KEY: json.dumps(about)})
    with atomic_writer(path) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


def read_collocations(path: Path) -> Collocations:
    """Read a list.

    Raises:
        UserError: if there is none at `path`, or it is of another version. DamagedData: if it is no such list.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read(columns=["words"])
        about = parse_json((table.schema.metadata or {})[_KEY], dict[str, Any])
        if about["format"] != FORMAT or table.schema.field("words").type != pa.list_(pa.list_(pa.uint32())):
            raise ValueError("its format is another")
        if about["format_version"] != FORMAT_VERSION:
            raise UserError(f"{path} has format version {about['format_version']}, not {FORMAT_VERSION}; make it anew.")
        ngrams = pa.concat_arrays(table["words"].chunks)
        n_words, words = pc.list_value_length(ngrams), ngrams.flatten()
        word_sizes, tokens = pc.list_value_length(words), words.flatten()
        if ngrams.null_count or words.null_count or tokens.null_count:
            raise ValueError("it has nulls")
        ids, sizes, lengths = (array.to_numpy().astype(np.int64) for array in (tokens, word_sizes, n_words))
        found = Collocations(ids, sizes, lengths, str(about["tokenizer_sha256"]))
        if not 2 <= found.n_words.min() <= found.n_words.max() <= MAX_WORDS or found.word_sizes.min() < 1:
            raise ValueError(f"its n-grams are not of 2 to {MAX_WORDS} words")
    except MissingFile:
        raise UserError(f"{path}: no such collocation list; make one with `maskwright prep collocations`.") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = one_line(str(error) or type(error).__name__, 80)
        raise DamagedData(
            f"{shown_path(path)} is not a sound collocation list ({reason}); "
            "make it with `maskwright prep collocations`."
        ) from None
    return found


class Hashes:
    """64-bit hashes of stretches of a stream of tokens.

    They are equal where ids are and the places at which words begin; unlike ones are equal with a chance of about
    2**-60. A stretch's hash is the sum of a random number for each token, times a power by its place in the stretch: so
    it is a difference of running sums. What weighs nothing, at the end of a stretch, does not change it.

    Args:
        weights: [N] uint64: of `token_weights`, and 1 more for a token that begins a word.
    """

    def __init__(self, weights: NDArray[np.uint64]):
        powers, self._inverse = _powers(1 << max(16, len(weights).bit_length()))
        self._sums = np.zeros(len(weights) + 1, np.uint64)
        np.cumsum(weights * powers[: len(weights)], out=self._sums[1:])

    def __call__(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The hashes of tokens starts .. ends - 1: [M]."""
        return (self._sums[ends] - self._sums[starts]) * self._inverse[starts]


def token_weights(ordinary: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """A random number for each id of a vocabulary, 0 for those that are not ordinary: uint64 [size]."""
    x = np.arange(1, len(ordinary) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # splitmix64, Steele 2014
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.where(ordinary, x ^ (x >> np.uint64(31)), np.uint64(0))


@functools.lru_cache(2)
def _powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The powers 0 .. count - 1 of an odd number, and of its inverse, modulo 2**64."""
    base = 0xD1342543DE82EF95
    found = []
    for number in (base, pow(base, -1, 1 << 64)):
        factors = np.full(count, number, np.uint64)
        factors[0] = 1
        found.append(np.cumprod(factors))
    return found[0], found[1]
