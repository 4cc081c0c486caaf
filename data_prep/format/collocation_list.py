"""Collocation lists: the file that `maskwright prep collocations` writes and masking reads, and hashes to match it.

The file is a parquet table with a row for each n-gram: token ids of its words, count, PMI and text. The schema's
metadata has, under `maskwright`, a JSON object with format, version, tokenizer, and the settings of the search.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.cleaning import mix, powers
from data_prep.common.errors import DamagedData, MissingFile, UnusableInput, UserError, one_line
from data_prep.common.files import atomic_writer
from data_prep.common.reading import open_regular, parse_json, shown_path

FORMAT, FORMAT_VERSION = "maskwright-collocations", 1
MAX_WORDS = 8
_KEY = b"maskwright"
_BASE = 0xD1342543DE82EF95


@dataclass(frozen=True)
class Collocations:
    """N-grams of 2 to MAX_WORDS words each.

    tokens [T] int64: the token ids of all n-grams, concatenated. word_sizes [W]: number of tokens of each word.
    n_words [C]: number of words of each n-gram. tokenizer_sha256: the tokenizer of these ids.
    """

    tokens: NDArray[np.int64]
    word_sizes: NDArray[np.int64]
    n_words: NDArray[np.int64]
    tokenizer_sha256: str

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the n-grams and the tokenizer. Counts do not change it, since they do not change the masks."""
        digest = hashlib.sha256(self.tokenizer_sha256.encode())
        for array in (self.n_words, self.word_sizes, self.tokens):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def write(self, path: Path, columns: dict[str, Any], settings: dict[str, Any]) -> None:
        """Write the list atomically, with `columns` of a value per n-gram, and the JSON values `settings`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        def offsets(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
            return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)

        words = pa.ListArray.from_arrays(offsets(self.word_sizes), pa.array(self.tokens.astype(np.uint32)))
        ngrams = pa.ListArray.from_arrays(offsets(self.n_words), words)
        about = {"format": FORMAT, "format_version": FORMAT_VERSION, "tokenizer_sha256": self.tokenizer_sha256}
        metadata = {_KEY: json.dumps({**about, **settings})}
        table = pa.table({"words": ngrams, **columns}).replace_schema_metadata(metadata)
        with atomic_writer(path) as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)

    @staticmethod
    def read(path: Path) -> "Collocations":
        """Read a list.

        Raises UserError if it is missing or has another format version, and DamagedData if it is damaged.
        """
        import pyarrow as pa

        try:
            return _read(path)
        except MissingFile:
            raise UnusableInput(
                f"{path}: no such collocation list; make one with `maskwright prep collocations`."
            ) from None
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            reason = one_line(str(error) or type(error).__name__, 80)
            raise DamagedData(
                f"{shown_path(path)} is not a sound collocation list ({reason}); "
                "make it with `maskwright prep collocations`."
            ) from None


def _read(path: Path) -> Collocations:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with open_regular(path) as file:
        table = pq.ParquetFile(file, page_checksum_verification=True).read(columns=["words"])
    about = parse_json((table.schema.metadata or {})[_KEY], dict[str, Any])
    if about["format"] != FORMAT or table.schema.field("words").type != pa.list_(pa.list_(pa.uint32())):
        raise ValueError("its format is another")
    if about["format_version"] != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {about['format_version']}, not {FORMAT_VERSION}; make the list again."
        )
    ngrams = pa.concat_arrays(table["words"].chunks)
    n_words, words = pc.list_value_length(ngrams), ngrams.flatten()
    word_sizes, tokens = pc.list_value_length(words), words.flatten()
    if ngrams.null_count or words.null_count or tokens.null_count:
        raise ValueError("it has nulls")
    ids, sizes, lengths = (array.to_numpy().astype(np.int64) for array in (tokens, word_sizes, n_words))
    if not 2 <= lengths.min() <= lengths.max() <= MAX_WORDS or sizes.min() < 1:
        raise ValueError(f"its n-grams are not of 2 to {MAX_WORDS} words")
    return Collocations(ids, sizes, lengths, str(about["tokenizer_sha256"]))


class SpanHashes:
    """64-bit hashes of spans of tokens.

    Two spans have the same hash if they have the same ids and the same word starts; others collide with a probability
    of about 2**-60. The hash of a span is the sum of a random number per token, times a power by its index in the span.
    So it is a difference of running sums. Tokens that are not ordinary have the number 0: at the end of a span, they do
    not change the hash.

    Args:
        ordinary: [size] bool, whether each id of the vocabulary is ordinary.
    """

    def __init__(self, ordinary: NDArray[np.bool_]):
        ids = np.arange(1, len(ordinary) + 1, dtype=np.uint64)
        self._numbers = np.where(ordinary, mix(ids * np.uint64(0x9E3779B97F4A7C15)), np.uint64(0))

    def of(self, tokens: NDArray, begins_word: NDArray[np.bool_] | int = 0) -> Callable[[NDArray, NDArray], NDArray]:
        """The function from `starts`, `ends` [M] of spans in `tokens` [N] to their hashes, uint64 [M]."""
        numbers = self._numbers[tokens] + np.asarray(begins_word, bool)
        of_place, inverse = powers(_BASE, 1 << max(16, len(tokens).bit_length()))
        sums = np.zeros(len(tokens) + 1, np.uint64)
        np.cumsum(numbers * of_place[: len(tokens)], out=sums[1:])
        return lambda starts, ends: (sums[ends] - sums[starts]) * inverse[starts]
