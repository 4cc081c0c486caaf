"""Reader of data sets in a folder or behind an fsspec URL (docs/data-format.md)."""

import functools
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.common.errors import DamagedData, UserError
from data_prep.common.files import read_into
from data_prep.common.reading import json_or_none
from data_prep.common.urls import is_url, open_remote, shown
from data_prep.format.local_storage import RESTORE, LocalStorage, ShardSpan
from data_prep.format.manifest import ShardInfo, TokenizerInfo, fingerprint, shard_index
from data_prep.format.shard_format import (
    ENDS_DTYPE,
    INDEX_HEADER,
    RECORDS,
    TARGETS_VERSION,
    block_key,
    document_ids,
    xxh3,
)
from data_prep.storage import Cache

if TYPE_CHECKING:
    from data_prep.format.remote_storage import RemoteStorage

_CACHED_RECORDS = 1 << 14  # block records in memory, about 500 bytes each


class Dataset:
    """A finished data set, opened read-only; blocks are numbered 0 .. n_blocks - 1 in manifest order.

    Opening reads manifest.json only. An index is checked the first time that this object reads it, a block each time.
    Between two calls no shard or index is open or in memory, so neither descriptors nor memory grow with the shards
    that were read. All methods are safe to call from any number of threads. Other processes can unpickle the object.

    Args:
        location: a folder, or a URL that fsspec knows. Parts of a remote data set are fetched and cached.
        cache: for the parts of a remote data set.

    Raises:
        UserError: for a data set that is missing, not finished or of another format version, and a URL that cannot or
            may not be read.
        DamagedData: (here and in every method) for stored bytes that differ from their size, checksum or count.
    """

    SAMPLES = "left_out.json"

    def __init__(self, location: str | Path, cache: Cache | None = None) -> None:
        self._arguments = (location, cache)
        self._storage = _open_storage(location, cache)
        self.location = shown(str(location))
        self.manifest = self._storage.manifest()
        self.dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        self._record_dtype = RECORDS[self.manifest.format_version]
        shards = self.manifest.shards
        self._first_block = np.cumsum([0] + [shard.blocks for shard in shards])
        self.n_blocks = int(self._first_block[-1])
        self._trusted = np.zeros(len(shards), bool)
        self._record = functools.lru_cache(_CACHED_RECORDS)(self._read_record)

    def __reduce__(self) -> tuple[type["Dataset"], tuple[Any, ...]]:
        return Dataset, self._arguments

    @property
    def path(self) -> Path:
        """The folder of a local data set; raises UserError for a remote one."""
        if self._storage.folder is None:
            raise UserError(f"{self.location} is not on this machine; copy the data set to a folder for this.")
        return self._storage.folder

    @property
    def left_out_samples(self) -> dict[str, list[str]]:
        """Starts of a few texts that the preparation left out, by reason; empty if they are not in a local folder."""
        folder = self._storage.folder
        return (json_or_none(folder / self.SAMPLES, dict[str, list[str]]) or {}) if folder else {}

    @property
    def tokenizer_path(self) -> Path:
        """A local folder with the tokenizer's files. Files of a remote data set are fetched and checked."""
        return self._storage.tokenizer(self.manifest.tokenizer)

    def check_tokenizer(self) -> None:
        """Raise DamagedData if the files in `tokenizer_path` differ from the tokenizer in the manifest."""
        info, folder = self.manifest.tokenizer, self.tokenizer_path
        try:
            digest = TokenizerInfo.digest(folder, info.files)
        except OSError as error:
            raise DamagedData(f"{folder} cannot be read ({error.strerror}); restore it.") from error
        if digest != info.sha256:
            raise DamagedData(f"{folder} is not the tokenizer that the data set was made with; restore it.")

    @functools.cached_property
    def begins_word(self) -> np.ndarray | None:
        """Whether each id begins a word, bool [vocab_size].

        None if the blocks store word starts (`word_starts`), or the data set has no tokenizer files.
        """
        info = self.manifest.tokenizer
        if info.continuation_prefix is None or not info.files:
            return None
        self.check_tokenizer()
        path = self.tokenizer_path / "tokenizer.json"
        try:
            return info.begins_word(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DamagedData(f"{path} does not determine word starts: {error}.") from error

    def check_files(self, indexes_alone: bool = False) -> None:
        """Raise DamagedData unless every shard and index exists with the manifest's size. Their bytes are not read.

        The message names the first such file, with its sizes, and counts the others. With `indexes_alone`, shards may
        be missing or short.
        """
        files: dict[str, int] = {}
        for shard in self.manifest.shards:
            files |= {} if indexes_alone else {shard.name: shard.bytes}
            files[shard.index_name] = shard.index_bytes
        sizes = self._storage.sizes(files)
        wrong = [name for name, expected in files.items() if sizes.get(name, -1) not in (None, expected)]
        if not wrong:
            return
        size, expected = sizes.get(wrong[0]), files[wrong[0]]
        problem = "is missing" if size is None else f"has {size} bytes, the manifest has {expected}"
        more = f", and {len(wrong) - 1} more of {len(files)} files are missing or of another size"
        raise DamagedData(f"{self._storage.name_of(wrong[0])} {problem}{more if len(wrong) > 1 else ''}; {RESTORE}.")

    def check_indexes(self) -> None:
        """Raise DamagedData unless every index is sound and the indexes give the manifest's fingerprint."""
        self._check_fingerprint(self._tables())

    @property
    def table(self) -> np.ndarray:
        """The records of all blocks [n_blocks]; reads and checks every index, and the fingerprint."""
        tables = list(self._tables())
        self._check_fingerprint(iter(tables))
        return np.concatenate([*tables, np.zeros(0, self._record_dtype)])

    def key(self, block: int) -> str:
        """WebDataset key of a block."""
        _, record = self._record(block)
        return block_key(int(record["task"]), int(record["number"]))

    def shard(self, block: int) -> ShardInfo:
        """The shard that holds a block."""
        return self.manifest.shards[self._shard_of(block)]

    def task(self, block: int) -> int:
        """The task that wrote a block."""
        return int(self._record(block)[1]["task"])

    def n_tokens(self, block: int) -> int:
        """Tokens of a block."""
        return int(self._record(block)[1]["tokens"])

    def find_document(self, number: int) -> tuple[int, int]:
        """The block of document `number`, counted from 0 over the whole set, and its index in the block."""
        if not 0 <= number < self.manifest.totals.documents:
            raise IndexError(f"document {number} of {self.manifest.totals.documents}")
        ends = np.cumsum([shard.documents for shard in self.manifest.shards])
        shard = int(np.searchsorted(ends, number, side="right"))
        within = number - int(ends[shard]) + self.manifest.shards[shard].documents
        first = self._read_table(shard)["first_document"]
        block = int(np.searchsorted(first, within, side="right")) - 1
        return int(self._first_block[shard]) + block, within - int(first[block])

    def document_lengths(self, block: int) -> np.ndarray:
        """Number of tokens of each document of a block, uint32 [n_documents]."""
        shard, record = self._record(block)
        info = self.manifest.shards[shard]
        start = INDEX_HEADER.itemsize + info.blocks * self._record_dtype.itemsize + 4 * int(record["first_document"])
        lengths = self._from_index(shard, np.dtype("<u4"), int(record["documents"]), start)
        if xxh3(np.cumsum(lengths, dtype=ENDS_DTYPE)) != record["ends_xxh3"]:
            raise DamagedData(
                f"{self._storage.name_of(info.index_name)} is damaged: the document lengths of block {self.key(block)} "
                f"do not have the checksum of its ends; {RESTORE}."
            )
        return lengths

    def read_tokens(self, block: int, out: np.ndarray) -> None:
        """Read the token ids of a block into `out`, `dtype` [n_tokens(block)], by one contiguous read.

        Raises DamagedData, naming shard, block, and both checksums or sizes, if the bytes are damaged. The content of
        `out` is undefined then.
        """
        n_tokens = self.n_tokens(block)
        if out.dtype != self.dtype or out.shape != (n_tokens,) or not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError(f"out is {out.dtype} {out.shape}, not writeable, contiguous {self.dtype} ({n_tokens},)")
        self._read(block, "tokens", out)

    def tokens(self, block: int) -> np.ndarray:
        """Token ids of a block, `dtype` [n_tokens(block)], as a new array."""
        tokens = np.empty(self.n_tokens(block), self.dtype)
        self._read(block, "tokens", tokens)
        return tokens

    def token_counts(self, block: int | None = None, progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Frequency of each id in a block, or in the whole data set, int64 [vocab_size].

        `progress` receives the blocks counted and all blocks of the data set.
        """
        vocab_size = self.manifest.tokenizer.vocab_size
        if block is None:
            counts = np.zeros(vocab_size, np.int64)
            for number in range(self.n_blocks):
                counts += self.token_counts(number)
                if progress:
                    progress(number + 1, self.n_blocks)
            return counts
        tokens = self.tokens(block)
        if (largest := int(tokens.max())) >= vocab_size:
            name = f"{self.shard(block).name} block {self.key(block)}"
            raise DamagedData(f"{name}: id {largest} is not in the vocabulary of {vocab_size}.")
        return np.bincount(tokens, minlength=vocab_size)

    def document_ends(self, block: int) -> np.ndarray:
        """Offset past each document's last token, uint32 [n_documents], as stored in the tar."""
        ends = np.empty(int(self._record(block)[1]["documents"]), ENDS_DTYPE)
        self._read(block, "ends", ends)
        return ends

    def word_starts(self, block: int) -> np.ndarray | None:
        """Whether each token begins a word, bool [n_tokens(block)]; None if `begins_word` determines it."""
        return self._bits(block, "words") if self._record(block)[1]["words_offset"] else None

    def token_starts(self, block: int, tokens: np.ndarray, part: slice = slice(None)) -> np.ndarray:
        """Whether each of the tokens of a part of a block begins a word, stored or by the vocabulary.

        Args:
            tokens: the ids of the part.
            part: the positions in the block; default: the whole block.

        Returns bool [len(tokens)]. Raises UserError if neither gives them, or an id is not in the vocabulary.
        """
        if (starts := self.word_starts(block)) is not None:
            return starts[part]
        if self.begins_word is None:
            raise UserError(f"{self.location} has no tokenizer files, which determine word starts.")
        if int(tokens.max()) >= len(self.begins_word):
            problem = f"block {self.key(block)} has id {tokens.max()}, which is not in the vocabulary"
            raise UserError(f"{self.location}: {problem}; run `maskwright prep verify`.")
        return self.begins_word[tokens]

    @property
    def has_targets(self) -> bool:
        """Whether the data set was prepared from pairs of texts, for cloze repair."""
        return self.manifest.format_version == TARGETS_VERSION

    def targets(self, block: int) -> np.ndarray | None:
        """Whether each token is in a word that the wrong text lacks, bool [n_tokens(block)]; None without pairs."""
        return self._bits(block, "targets") if self.has_targets else None

    def ids(self, block: int) -> list[str | int] | None:
        """The id that each document of a block has in its source; None if ids were not stored."""
        shard, record = self._record(block)
        if not record["ids_offset"]:
            return None
        data = np.empty(int(record["ids_bytes"]), "u1")
        self._read(block, "ids", data)
        try:
            return document_ids(data.tobytes(), int(record["documents"]))
        except ValueError as error:
            path = self._storage.name_of(self.manifest.shards[shard].name)
            raise DamagedData(f"{path}: the ids of {self.key(block)}: {error}.") from error

    def _bits(self, block: int, member: str) -> np.ndarray:
        n_tokens = self.n_tokens(block)
        bits = np.empty(-(-n_tokens // 8), "u1")
        self._read(block, member, bits)
        return np.unpackbits(bits, count=n_tokens, bitorder="little").view(bool)

    def _read(self, block: int, member: str, out: np.ndarray) -> None:
        shard, record = self._record(block)
        offset, checksum = int(record[f"{member}_offset"]), int(record[f"{member}_xxh3"])
        what = f"{member} of block {self.key(block)}"
        self._storage.read(ShardSpan(self.manifest.shards[shard], offset, out.nbytes, checksum, what), _bytes(out))

    def _shard_of(self, block: int) -> int:
        if not 0 <= block < self.n_blocks:
            raise IndexError(f"block {block} of {self.n_blocks}")
        return int(np.searchsorted(self._first_block, block, side="right")) - 1

    def _read_record(self, block: int) -> tuple[int, np.void]:
        """The number of a block's shard, and its record."""
        shard = self._shard_of(block)
        start = INDEX_HEADER.itemsize + self._record_dtype.itemsize * (block - int(self._first_block[shard]))
        return shard, self._from_index(shard, self._record_dtype, 1, start)[0]

    def _read_table(self, shard: int) -> np.ndarray:
        return self._from_index(shard, self._record_dtype, self.manifest.shards[shard].blocks, INDEX_HEADER.itemsize)

    def _tables(self) -> Iterator[np.ndarray]:
        return map(self._read_table, range(len(self.manifest.shards)))

    def _from_index(self, shard: int, dtype: np.dtype, count: int, start: int) -> np.ndarray:
        """`count` elements from byte `start` of an index. The first read checks the whole index."""
        info = self.manifest.shards[shard]
        elements = np.empty(count, dtype)
        trusted = bool(self._trusted[shard])
        with self._storage.index(info, trusted) as descriptor:
            if not trusted:
                data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
                try:
                    shard_index(data, info, self.dtype, self.manifest.format_version)
                except ValueError as error:
                    path = self._storage.name_of(info.index_name)
                    raise DamagedData(f"{path} is damaged: {error}; prepare the data set again.") from error
                self._trusted[shard] = True
            n_bytes = read_into(descriptor, _bytes(elements), start)
        if n_bytes < elements.nbytes:
            path = self._storage.name_of(info.index_name)
            raise DamagedData(f"{path} is now shorter than the {info.index_bytes} bytes that it had; {RESTORE}.")
        return elements

    def _check_fingerprint(self, tables: Iterator[np.ndarray]) -> None:
        computed = fingerprint(self.manifest.tokenizer.sha256, self.dtype, tables, self.manifest.format_version)
        if computed != self.manifest.fingerprint:
            stored = self.manifest.fingerprint
            raise DamagedData(f"{self.location}: manifest.json has fingerprint {stored}, its indexes give {computed}.")


def _open_storage(location: str | Path, cache: Cache | None) -> "LocalStorage | RemoteStorage":
    if isinstance(location, Path) or not is_url(location):
        return LocalStorage(Path(location))
    remote = open_remote(location)
    if remote.is_local and not remote.tail:
        return LocalStorage(Path(remote.path))
    from data_prep.format.remote_storage import RemoteStorage

    return RemoteStorage(location, cache or Cache())


def _bytes(array: np.ndarray) -> memoryview:
    return array.view("u1").data
