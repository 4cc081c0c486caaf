"""The manifest of a data set: tokenizer, shards, inputs, and the fingerprint of the content."""

import bisect
import functools
import hashlib
import mmap
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.common.errors import DamagedData, UnusableInput, one_line
from data_prep.common.files import sha256_file, write_json
from data_prep.common.reading import parse_json, typed
from data_prep.format.shard_format import (
    FORMAT,
    FORMAT_VERSION,
    INDEX_HEADER,
    RECORDS,
    TARGETS_VERSION,
    bit_members,
    check_index,
    index_name,
    read_index,
    token_dtype,
)

SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")
MAX_VOCABULARY = 1 << 24
MAX_MANIFEST_BYTES = 1 << 30
# A manifest may come from anyone. No other file name is ever opened, so no reader leaves the folder.
_SHARD_NAME = re.compile(r"[0-9]{5,10}-[0-9]{5,10}\.tar")
_TOKENIZER_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}(\.[A-Za-z0-9_-]{1,20})?\.(json|txt|model)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TokenizerInfo:
    """The tokenizer of a data set.

    `sha256` is the digest of the lines that `sha256sum` prints for the files, in name order. `vocab_size` is the
    largest id + 1, added tokens included. `continuation_prefix` is the WordPiece prefix ("##") if the vocabulary alone
    determines word starts, else None; each block then stores them.
    """

    sha256: str
    files: dict[str, str]
    vocab_size: int
    special_ids: dict[str, int]
    all_special_ids: list[int]
    continuation_prefix: str | None

    @classmethod
    def of_files(cls, folder: Path, names: Iterable[str], **values: Any) -> "TokenizerInfo":
        """The description with these `values` of the tokenizer that has the files `names` of a folder."""
        digest, files = _digests(folder, names)
        return cls(sha256=digest, files=files, **values)

    @staticmethod
    def digest(folder: Path, names: Iterable[str]) -> str:
        """The `sha256` of a tokenizer that has the files `names` of a folder. Raises OSError."""
        return _digests(folder, names)[0]

    def check_roles(self) -> None:
        """Raise UserError if one id marks both padding and the start of a text, or both masks and something else."""
        ids = self.special_ids
        pairs = [("pad", "cls"), *(("mask", name) for name in ids if name != "mask")]
        if equal := [pair for pair in pairs if ids[pair[0]] == ids[pair[1]]]:
            role, other = equal[0]
            raise UnusableInput(
                f"The tokenizer has one token, id {ids[role]}, as its {role} and its {other} token, so the two cannot "
                f"be distinguished. Name another {role}_token in its tokenizer_config.json."
            )

    @property
    def dtype(self) -> np.dtype:
        """The type of the token ids in shards."""
        return token_dtype(self.vocab_size)

    def begins_word(self, tokenizer_json: bytes) -> np.ndarray:
        """Whether each id begins a word, bool [vocab_size]: all ids do except those with the continuation prefix.

        Raises ValueError for a tokenizer.json without a vocabulary of tokens and ids.
        """
        try:
            settings = parse_json(tokenizer_json, Any)
            added = {token["content"]: token["id"] for token in settings["added_tokens"]}
            tokens = {**settings["model"]["vocab"], **added}
            inside = [id for token, id in tokens.items() if token.startswith(self.continuation_prefix)]
            begins = np.ones(self.vocab_size, bool)
            begins[[id for id in inside if 0 <= id < self.vocab_size]] = False
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError("it has no vocabulary of tokens and ids") from error
        return begins

    def check(self) -> None:
        """Raise ValueError unless the values are consistent and file names stay within the folder."""
        if not 0 < self.vocab_size <= MAX_VOCABULARY:
            raise ValueError(f"tokenizer.vocab_size is {self.vocab_size}, not from 1 to {MAX_VOCABULARY}")
        if not set(SPECIAL_NAMES) - {"unk"} <= set(self.special_ids) <= set(SPECIAL_NAMES):
            raise ValueError(
                f"tokenizer.special_ids are of {reprlib.repr(list(self.special_ids))}, not {SPECIAL_NAMES}"
            )
        for id in (*self.special_ids.values(), *self.all_special_ids):
            if id >= self.vocab_size:
                raise ValueError(f"the special id {id} is not in the vocabulary of {self.vocab_size}")
        _check_digest(self.sha256, "the tokenizer")
        for name, digest in self.files.items():
            if not _TOKENIZER_FILE.fullmatch(name):
                raise ValueError(f"{reprlib.repr(name)} is not a name for a tokenizer's file")
            _check_digest(digest, name)


@dataclass(frozen=True)
class DataSetTotals:
    """Sums over all shards, and over all inputs of the UTF-8 bytes of their texts.

    Early versions of Maskwright did not count `text_bytes`, and left out the key.
    """

    documents: int
    tokens: int
    blocks: int
    text_bytes: int | None = None


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

    @property
    def has_valid_name(self) -> bool:
        """Whether the name is a shard's, so that it cannot lead to another folder."""
        return bool(_SHARD_NAME.fullmatch(self.name))


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One input: a file, or a group of small files. Its blocks have `tasks` task numbers from `first_task` on.

    `source` is the name that the user gave to inputs of this kind, or empty. `documents`, `tokens` and `text_bytes` (of
    UTF-8) count what is in this data set. `left_out` counts, by reason, the documents that are in no data set of the
    preparation.
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
    """The contents of manifest.json. Manifests of earlier versions of Maskwright have no `index_fingerprint`."""

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
        counts = sum((Counter(source.left_out) for source in self.sources), Counter())
        return dict(sorted(counts.items()))

    def source_of(self, task: int) -> SourceInfo | None:
        """The input of a task; None if the manifest has none."""
        before = bisect.bisect_right(self._ordered, task, key=lambda source: source.first_task)
        source = self._ordered[before - 1] if before else None
        return source if source and task < source.first_task + source.tasks else None

    def shard_sources(self) -> list[str]:
        """The source of each shard's blocks: the name that the user gave to their input, or empty."""
        inputs = [self.source_of(int(shard.name.partition("-")[0])) for shard in self.shards]  # task-shard.tar
        return [given.source if given else "" for given in inputs]

    @functools.cached_property
    def _ordered(self) -> list[SourceInfo]:
        return sorted((source for source in self.sources if source.tasks), key=lambda source: source.first_task)

    @classmethod
    def write(
        cls,
        folder: Path,
        tokenizer: TokenizerInfo,
        shards: Sequence[ShardInfo],
        sources: Sequence[SourceInfo],
        targets: bool = False,
    ) -> "Manifest":
        """Write and return manifest.json for the finished shards in `folder`/shards, which have targets or not."""
        version = TARGETS_VERSION if targets else FORMAT_VERSION
        tables = (read_index((folder / "shards" / shard.index_name).read_bytes())[1] for shard in shards)
        manifest = cls(
            format=FORMAT,
            format_version=version,
            fingerprint=fingerprint(tokenizer.sha256, tokenizer.dtype, tables, version),
            tokenizer=tokenizer,
            dtype=tokenizer.dtype.name,
            totals=_totals(shards, sources),
            shards=list(shards),
            sources=list(sources),
            index_fingerprint=index_fingerprint(shards),
        )
        write_json(folder / "manifest.json", asdict(manifest))
        return manifest


def _totals(shards: Sequence[ShardInfo], sources: Sequence[SourceInfo]) -> DataSetTotals:
    sums = {name: sum(getattr(shard, name) for shard in shards) for name in ("documents", "tokens", "blocks")}
    complete = sum(source.documents for source in sources) == sums["documents"]  # the inputs have every document
    return DataSetTotals(
        **sums, text_bytes=(sum(source.text_bytes for source in sources) or None) if complete else None
    )


def fingerprint(
    tokenizer_sha256: str, dtype: np.dtype, tables: Iterable[np.ndarray], version: int = FORMAT_VERSION
) -> str:
    """SHA-256 of a data set's content: tokenizer, dtype, and each block's counts and checksums, in order.

    Names of files, tasks and folders do not change it, nor does the division into shards.
    """
    digest = hashlib.sha256(f"{FORMAT} {version} {tokenizer_sha256} {dtype.name}\n".encode())
    columns = ["documents", "tokens", "tokens_xxh3", "ends_xxh3"]
    columns += [f"{name}_xxh3" for name in bit_members(RECORDS[version])]
    for table in tables:
        digest.update(np.stack([table[name].astype("<u8") for name in columns], axis=1).tobytes())
    return digest.hexdigest()


def index_fingerprint(shards: Iterable[ShardInfo]) -> str:
    """SHA-256 of the lines with the SHA-256 of each shard's index, in order. It covers the document lengths too."""
    lines = "".join(f"{shard.index_sha256}\n" for shard in shards)
    return hashlib.sha256(lines.encode()).hexdigest()


def shard_index(
    data: bytes | mmap.mmap, shard: ShardInfo, dtype: np.dtype, version: int
) -> tuple[np.ndarray, np.ndarray]:
    """Block table [blocks] and document lengths uint32 [documents] of a shard's index, views of `data`.

    Raises ValueError with the reason if it is damaged or differs from the manifest.
    """
    header, table, lengths = read_index(data)
    if header["version"] != version:
        raise ValueError(f"it has version {header['version']}, the manifest {version}")
    for name in ("blocks", "documents", "tokens"):
        if header[name] != getattr(shard, name):
            raise ValueError(f"it has {header[name]} {name}, the manifest has {getattr(shard, name)}")
    check_index(header, table, lengths, dtype.itemsize, shard.bytes)
    return table, lengths


def parse_manifest(path: str, data: bytes) -> Manifest:
    """The manifest with the bytes `data`; raises UserError, naming `path`, if it does not follow the format."""
    try:
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has more than {MAX_MANIFEST_BYTES} bytes")
        return _parse_manifest(path, parse_json(data, Any))
    except ValueError as error:
        reason = one_line(str(error), 160)
    advice = "name another data set, or prepare this one again with `maskwright prep run`"
    raise DamagedData(f"{path} is not a valid manifest: {reason}; {advice}.")


def _parse_manifest(path: str, raw: Any) -> Manifest:
    if type(raw) is not dict:
        raise ValueError(f"it is {reprlib.repr(raw)}, not an object")
    if "format" not in raw:
        raise ValueError("it has no key `format`, which every manifest of a data set has")
    if raw["format"] != FORMAT:
        raise ValueError(f"its format is {reprlib.repr(raw['format'])}, not {FORMAT}")
    version = raw.get("format_version")
    if type(version) is not int or version not in RECORDS:
        raise UnusableInput(
            f"{path} has format version {reprlib.repr(version)}, this Maskwright reads versions {FORMAT_VERSION} and "
            f"{TARGETS_VERSION}; prepare the data again."
        )
    sources = raw.get("sources")
    for part in (raw.get("totals"), *(sources if type(sources) is list else ())):
        if type(part) is dict:
            part.pop("words", None)  # which earlier versions counted
    manifest: Manifest = typed(Manifest, raw)
    manifest.tokenizer.check()
    if manifest.dtype != manifest.tokenizer.dtype.name:
        raise ValueError(f"dtype {manifest.dtype!r} does not fit a vocabulary of {manifest.tokenizer.vocab_size}")
    names = set()
    for shard in manifest.shards:
        if not shard.has_valid_name or shard.name in names:
            raise ValueError(f"{reprlib.repr(shard.name)} is not a shard's name, or there are two such shards")
        names.add(shard.name)
        for digest in (shard.sha256, shard.index_sha256):
            _check_digest(digest, shard.name)
        size = INDEX_HEADER.itemsize + RECORDS[version].itemsize * shard.blocks + 4 * shard.documents
        if shard.index_bytes != size:
            raise ValueError(f"{shard.index_name} has {shard.index_bytes} bytes, by format version {version} {size}")
    for source in manifest.sources:
        if source.first_task + source.tasks > 1 << 32:
            raise ValueError(f"{reprlib.repr(source.name)} has {source.tasks} tasks from {source.first_task} on")
    for name, total in asdict(_totals(manifest.shards, manifest.sources)).items():
        if getattr(manifest.totals, name) not in (None, total):
            parts = "inputs" if name == "text_bytes" else "shards"
            raise ValueError(f"the {parts}' {name} do not add up to the total")
    computed = index_fingerprint(manifest.shards)
    if manifest.index_fingerprint not in (None, computed):
        stored = reprlib.repr(manifest.index_fingerprint)
        raise ValueError(f"the index fingerprint is {stored}, the shards' indexes give {reprlib.repr(computed)}")
    return manifest


def _check_digest(digest: str, name: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{reprlib.repr(digest)} for {name} is not a SHA-256 in hexadecimal")


def _digests(folder: Path, names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The `sha256` of a tokenizer that has these files, and the SHA-256 of each file."""
    files = {name: sha256_file(folder / name) for name in sorted(names)}
    lines = "".join(f"{digest}  {name}\n" for name, digest in files.items())
    return hashlib.sha256(lines.encode()).hexdigest(), files
