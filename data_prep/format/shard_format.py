"""The shard format: what a data set folder holds (docs/data-format.md is the full account).

Version 1 is that of text. Version 2 is that of pairs of texts: a bit more for each token, and room for it in the index.

DATASET/manifest.json                     written last; a folder without it is not a data set
DATASET/tokenizer/                        the tokenizer that made the ids
DATASET/shards/{task:05d}-{shard:05d}.tar    WebDataset samples, each a block of whole documents
DATASET/shards/{task:05d}-{shard:05d}.index  block table and document lengths of that tar
"""

import hashlib
import mmap
import re
import reprlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from data_prep.errors import DamagedData, UnusableInput, one_line
from data_prep.format.integrity_checks import bit_members, check_index
from data_prep.reading import parse_json, typed

FORMAT = "maskwright-blocks"
FORMAT_VERSION = 1
TARGETS_VERSION = 2  # of data sets whose tokens are targets or not
BLOCK_TOKENS = 1 << 18  # a block closes with the document that reaches this many tokens
SHARD_BYTES = 256 << 20  # a shard closes before the block that would pass this size
INDEX_MAGIC = b"MWBLOCKS"
SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")
MAX_VOCABULARY = 1 << 24
MAX_MANIFEST_BYTES = 1 << 30
_OTHER_DATA = "name another data set, or prepare this one again with `maskwright prep run`"

INDEX_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("token_bytes", "<u4"),
        ("blocks", "<u8"),
        ("documents", "<u8"),
        ("tokens", "<u8"),
    ]
)
# Offsets are from the start of the tar to the first array element, past the tar and .npy headers; a checksum is
# xxh3_64 of the array's bytes alone (of ids: of the JSON). An offset is 0 where the block has no such member.
BLOCK_RECORD = np.dtype(
    [
        ("task", "<u4"),
        ("number", "<u4"),
        ("documents", "<u8"),
        ("tokens", "<u8"),
        ("first_document", "<u8"),
        ("tokens_offset", "<u8"),
        ("ends_offset", "<u8"),
        ("words_offset", "<u8"),
        ("tokens_xxh3", "<u8"),
        ("ends_xxh3", "<u8"),
        ("words_xxh3", "<u8"),
        ("ids_offset", "<u8"),
        ("ids_bytes", "<u8"),
        ("ids_xxh3", "<u8"),
    ]
)
_RECORDS = {
    FORMAT_VERSION: BLOCK_RECORD,
    TARGETS_VERSION: np.dtype([*BLOCK_RECORD.descr, ("targets_offset", "<u8"), ("targets_xxh3", "<u8")]),
}
ENDS_DTYPE = np.dtype("<u4")
# Manifests come from other people too: what these do not allow is never opened, so no reader leaves the folder.
_SHARD_NAME = re.compile(r"[0-9]{5,10}-[0-9]{5,10}\.tar")
_TOKENIZER_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}(\.[A-Za-z0-9_-]{1,20})?\.(json|txt|model)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TokenizerInfo:
    """The tokenizer of a data set.

    `sha256` is the digest of `sha256sum`'s lines over the files in name order; `vocab_size` is the largest id + 1,
    added tokens included; `continuation_prefix` is the WordPiece prefix ("##") where the vocabulary alone tells word
    starts, else None and each block carries them.
    """

    sha256: str
    files: dict[str, str]
    vocab_size: int
    special_ids: dict[str, int]
    all_special_ids: list[int]
    continuation_prefix: str | None


@dataclass(frozen=True)
class DataSetTotals:
    """Sums over all shards."""

    documents: int
    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One tar and its index."""

    name: str
    bytes: int
    sha256: str
    index_bytes: int
    index_sha256: str
    documents: int
    tokens: int
    blocks: int

    @property
    def index_name(self) -> str:
        return index_name(self.name)


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One input (a file, as a rule), whose blocks carry the task numbers from `first_task` on, `tasks` of them.

    `source` is the name that the user gave to the inputs of this kind, or empty. `documents`, `tokens` and `text_bytes`
    (of UTF-8) are those in this data set. `left_out` counts, by reason, what no data set of the preparation has.
    """

    name: str
    source: str
    bytes: int
    digest: str
    first_task: int
    tasks: int
    documents: int
    tokens: int
    text_bytes: int
    left_out: dict[str, int]


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json; `index_fingerprint` is None in one of an earlier version of Maskwright."""

    format: str
    format_version: int
    fingerprint: str
    tokenizer: TokenizerInfo
    dtype: str
    totals: DataSetTotals
    shards: list[ShardInfo]
    sources: list[SourceInfo]
    index_fingerprint: str | None = None

    def left_out(self) -> dict[str, int]:
        """Documents left out of the whole preparation, by reason."""
        counts: Counter[str] = Counter()
        for source in self.sources:
            counts.update(source.left_out)
        return dict(sorted(counts.items()))


def shard_name(task: int, shard: int) -> str:
    """File name of a task's shard."""
    return f"{task:05d}-{shard:05d}.tar"


def index_name(shard: str) -> str:
    """File name of the index beside a shard."""
    return shard.removesuffix(".tar") + ".index"


def block_key(task: int, number: int) -> str:
    """WebDataset key of a block; without a dot, since readers split the member name at the first one."""
    return f"{task:05d}_{number:09d}"


def token_dtype(vocab_size: int) -> np.dtype:
    """The little-endian type that holds every id below `vocab_size`: uint16 where it fits, else uint32."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def xxh3(array: np.ndarray | bytes | memoryview) -> int:
    """xxh3_64 of bytes, or of a contiguous array's bytes."""
    return xxhash.xxh3_64_intdigest(array.data if isinstance(array, np.ndarray) else array)


def block_record(version: int) -> np.dtype:
    """The record of a block in the index of a format version: BLOCK_RECORD, and more fields after it."""
    return _RECORDS[version]


def fingerprint(
    tokenizer_sha256: str, dtype: np.dtype, tables: Iterable[np.ndarray], version: int = FORMAT_VERSION
) -> str:
    """SHA-256 of a data set's content: tokenizer, dtype, and each block's counts and checksums, in order.

    File, task and folder names do not enter it, nor does the cut into shards.
    """
    digest = hashlib.sha256(f"{FORMAT} {version} {tokenizer_sha256} {dtype.name}\n".encode())
    columns = ["documents", "tokens", "tokens_xxh3", "ends_xxh3"]
    columns += [f"{name}_xxh3" for name in bit_members(block_record(version))]
    for table in tables:
        content = np.empty((len(table), len(columns)), "<u8")
        for column, name in enumerate(columns):
            content[:, column] = table[name]
        digest.update(content.tobytes())
    return digest.hexdigest()


def index_fingerprint(shards: Iterable[ShardInfo]) -> str:
    """SHA-256 of the SHA-256 of each shard's index, a line each, in order: of document lengths and checksums too."""
    lines = "".join(f"{shard.index_sha256}\n" for shard in shards)
    return hashlib.sha256(lines.encode()).hexdigest()


def read_index(data: bytes | mmap.mmap) -> tuple[np.void, np.ndarray, np.ndarray]:
    """Header, block table [blocks] and document lengths uint32 [documents] of an index, as views of `data`.

    Raises ValueError saying what is wrong with it.
    """
    if len(data) < INDEX_HEADER.itemsize:
        raise ValueError(f"it has {len(data)} bytes, less than its header")
    header = np.frombuffer(data, INDEX_HEADER, 1)[0]
    if header["magic"] != INDEX_MAGIC or header["version"] not in _RECORDS:
        raise ValueError(f"its header is not that of an index of version {FORMAT_VERSION} or {TARGETS_VERSION}")
    blocks, documents = int(header["blocks"]), int(header["documents"])
    record = block_record(int(header["version"]))
    lengths_offset = INDEX_HEADER.itemsize + blocks * record.itemsize
    if len(data) != lengths_offset + 4 * documents:
        raise ValueError(f"it has {len(data)} bytes where {blocks} blocks and {documents} documents are announced")
    table = np.frombuffer(data, record, blocks, INDEX_HEADER.itemsize)
    return header, table, np.frombuffer(data, "<u4", documents, lengths_offset)


def shard_index(
    data: bytes | mmap.mmap, shard: ShardInfo, dtype: np.dtype, version: int
) -> tuple[np.ndarray, np.ndarray]:
    """Block table [blocks] and document lengths uint32 [documents] of a shard's index, views of `data`.

    Raises ValueError saying what is wrong with it, with itself or against the manifest.
    """
    header, table, lengths = read_index(data)
    if header["version"] != version:
        raise ValueError(f"it is of version {header['version']}, the manifest of {version}")
    for name in ("blocks", "documents", "tokens"):
        if header[name] != getattr(shard, name):
            raise ValueError(f"it has {header[name]} {name}, the manifest has {getattr(shard, name)}")
    check_index(header, table, lengths, dtype.itemsize, shard.bytes)
    return table, lengths


def parse_manifest(place: str, data: bytes) -> Manifest:
    """The manifest whose bytes are `data`; raises UserError, naming `place`, where it does not follow the format."""
    try:
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has more than {MAX_MANIFEST_BYTES} bytes")
        return _parse_manifest(place, parse_json(data, Any))
    except ValueError as error:
        reason = one_line(str(error), 160)
    raise DamagedData(f"{place} is not a valid manifest: {reason}; {_OTHER_DATA}.")


def _parse_manifest(place: str, raw: Any) -> Manifest:
    if type(raw) is not dict:
        raise ValueError(f"it is {reprlib.repr(raw)}, not an object")
    if "format" not in raw:
        raise ValueError("it has no key `format`, which every manifest of a data set has")
    if raw["format"] != FORMAT:
        raise ValueError(f"its format is {reprlib.repr(raw['format'])}, not {FORMAT}")
    version = raw.get("format_version")
    if type(version) is not int or version not in _RECORDS:
        raise UnusableInput(
            f"{place} has format version {reprlib.repr(version)}, this Maskwright reads versions {FORMAT_VERSION} and "
            f"{TARGETS_VERSION}; prepare the data again."
        )
    manifest: Manifest = typed(Manifest, raw)
    check_tokenizer(manifest.tokenizer)
    if manifest.dtype != token_dtype(manifest.tokenizer.vocab_size).name:
        raise ValueError(f"dtype {manifest.dtype!r} does not go with a vocabulary of {manifest.tokenizer.vocab_size}")
    names = set()
    for shard in manifest.shards:
        if not is_shard_name(shard.name) or shard.name in names:
            raise ValueError(f"{reprlib.repr(shard.name)} is not a shard's name, or there are two such shards")
        names.add(shard.name)
        for digest in (shard.sha256, shard.index_sha256):
            _check_digest(digest, shard.name)
        size = INDEX_HEADER.itemsize + block_record(version).itemsize * shard.blocks + 4 * shard.documents
        if shard.index_bytes != size:
            raise ValueError(f"{shard.index_name} has {shard.index_bytes} bytes, by format version {version} {size}")
    for source in manifest.sources:
        if source.first_task + source.tasks > 1 << 32:
            raise ValueError(f"{reprlib.repr(source.name)} has the tasks from {source.first_task} on, {source.tasks}")
    for field in fields(DataSetTotals):
        if getattr(manifest.totals, field.name) != sum(getattr(shard, field.name) for shard in manifest.shards):
            raise ValueError(f"the shards' {field.name} do not add up to the total")
    found = index_fingerprint(manifest.shards)
    if manifest.index_fingerprint not in (None, found):
        said = reprlib.repr(manifest.index_fingerprint)
        raise ValueError(f"the index fingerprint is {said}, the shards' indexes give {reprlib.repr(found)}")
    return manifest


def is_shard_name(name: str) -> bool:
    """Whether a file may be a shard: a name that leads out of no folder."""
    return bool(_SHARD_NAME.fullmatch(name))


def check_tokenizer(info: TokenizerInfo) -> None:
    """Raise ValueError unless what is said of a tokenizer agrees with itself."""
    if not 0 < info.vocab_size <= MAX_VOCABULARY:
        raise ValueError(f"tokenizer.vocab_size is {info.vocab_size}, not from 1 to {MAX_VOCABULARY}")
    if not set(SPECIAL_NAMES) - {"unk"} <= set(info.special_ids) <= set(SPECIAL_NAMES):
        raise ValueError(f"tokenizer.special_ids are of {reprlib.repr(list(info.special_ids))}, not {SPECIAL_NAMES}")
    for id in (*info.special_ids.values(), *info.all_special_ids):
        if id >= info.vocab_size:
            raise ValueError(f"the special id {id} is not in the vocabulary of {info.vocab_size}")
    _check_digest(info.sha256, "the tokenizer")
    for name, digest in info.files.items():
        if not _TOKENIZER_FILE.fullmatch(name):
            raise ValueError(f"{reprlib.repr(name)} is not a name for a tokenizer's file")
        _check_digest(digest, name)


def _check_digest(digest: str, name: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{reprlib.repr(digest)} for {name} is not a SHA-256 in hexadecimal")


def tokenizer_digest(folder: Path, names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """SHA-256 of a tokenizer's files together (of sha256sum's lines over them in name order), and of each by name."""
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sorted(names)}
    lines = "".join(f"{digest}  {name}\n" for name, digest in files.items())
    return hashlib.sha256(lines.encode()).hexdigest(), files


def begins_word(tokenizer_json: bytes, info: TokenizerInfo) -> np.ndarray:
    """Whether each id begins a word, bool [vocab_size], of a tokenizer whose vocabulary tells: all but those with the
    continuation prefix do. Raises ValueError for a tokenizer.json without a vocabulary of tokens and ids.
    """
    try:
        settings = parse_json(tokenizer_json, Any)
        tokens = {**settings["model"]["vocab"], **{token["content"]: token["id"] for token in settings["added_tokens"]}}
        inside = [id for token, id in tokens.items() if token.startswith(info.continuation_prefix)]
        found = np.ones(info.vocab_size, bool)
        found[[id for id in inside if 0 <= id < info.vocab_size]] = False
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError("it has no vocabulary of tokens and ids") from error
    return found
