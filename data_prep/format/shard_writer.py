"""Writes the shards of one task: byte-reproducible tars of blocks, each with its index."""

import contextlib
import hashlib
import io
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from data_prep.files import atomic_writer
from data_prep.format.shard_format import (
    BLOCK_TOKENS,
    ENDS_DTYPE,
    FORMAT_VERSION,
    INDEX_HEADER,
    INDEX_MAGIC,
    SHARD_BYTES,
    TARGETS_VERSION,
    ShardInfo,
    block_key,
    block_record,
    index_name,
    shard_name,
    xxh3,
)

_TAR_BLOCK = 512


def tar_header(name: str, size: int) -> bytes:
    """The 512 bytes of a POSIX ustar header; after its `size` bytes, a member is filled up to a multiple of 512."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o444, 0
    return info.tobuf(tarfile.USTAR_FORMAT)


def npy_header(array: np.ndarray) -> bytes:
    """What stands before a contiguous array's bytes in an .npy file of version 1.0."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(array))
    return buffer.getvalue()


class _Hashing:
    """A file that also hashes and counts what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha256, self.bytes = file, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.sha256.update(data)
        self.bytes += len(data)


@dataclass
class _OpenShard:
    name: str
    tar: _Hashing
    records: list[np.ndarray] = field(default_factory=list)
    lengths: list[np.ndarray] = field(default_factory=list)
    documents: int = 0
    tokens: int = 0

    def add(self, record: np.ndarray, lengths: np.ndarray) -> None:
        self.records.append(record)
        self.lengths.append(lengths)
        self.documents += len(lengths)
        self.tokens += int(record["tokens"])

    def totals(self) -> dict[str, int]:
        return {"blocks": len(self.records), "documents": self.documents, "tokens": self.tokens}


class ShardWriter:
    """Collects the documents of one task into blocks and shards under `folder`; use it as a context manager.

    A shard and its index appear under their names when complete; `shards` lists them. An exception leaves finished
    shards in place and removes the one under construction. With `targets`, the format version is the one that has them.
    """

    def __init__(
        self,
        folder: Path,
        task: int,
        dtype: np.dtype,
        block_tokens: int = BLOCK_TOKENS,
        shard_bytes: int = SHARD_BYTES,
        targets: bool = False,
    ) -> None:
        self.shards: list[ShardInfo] = []
        self._folder, self._task, self._dtype = folder, task, dtype
        self._block_tokens, self._shard_bytes = block_tokens, shard_bytes
        self._version = TARGETS_VERSION if targets else FORMAT_VERSION
        self._pending: dict[str, list[Any]] = defaultdict(list)  # parts of each member of the next block
        self._pending_tokens = 0
        self._next_block = 0
        self._shard: _OpenShard | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            if error is None:
                self._finish()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())  # so that the shard under construction is not given its name
            raise
        self._stack.__exit__(kind, error, trace)

    def _finish(self) -> None:
        if self._pending_tokens:
            self._close_block()
        self._close_shard()

    def add(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        word_starts: np.ndarray | None = None,
        ids: Sequence[str | int] | None = None,
        targets: np.ndarray | None = None,
    ) -> None:
        """Append documents: tokens [n_tokens] of one after the other and lengths [n_documents] of each.

        Word starts bool [n_tokens] and the documents' ids [n_documents] come with every document or with none; targets
        bool [n_tokens] if the writer was made for them. Raises ValueError for a document without tokens, and for a
        token id that the dtype cannot hold.
        """
        if (targets is not None) != (self._version == TARGETS_VERSION):
            raise ValueError("targets come with every document of a writer that was made for them")
        if len(tokens) != lengths.sum() or not lengths.all():
            raise ValueError("the lengths do not add up to the tokens, or a document has no tokens")
        if len(tokens) and int(tokens.max()) > np.iinfo(self._dtype).max:
            raise ValueError(f"id {tokens.max()} does not fit {self._dtype}")
        tokens, lengths, ends = tokens.astype(self._dtype, copy=False), lengths.astype("<u4"), np.cumsum(lengths)
        document = token = 0
        while document < len(lengths):
            room = self._block_tokens - self._pending_tokens
            stop = min(int(np.searchsorted(ends, token + room)) + 1, len(lengths))
            end = int(ends[stop - 1])
            self._pending_tokens += end - token
            self._pending["tokens"].append(tokens[token:end])
            self._pending["lengths"].append(lengths[document:stop])
            for name, bits in (("words", word_starts), ("targets", targets)):
                if bits is not None:
                    self._pending[name].append(bits[token:end])
            if ids is not None:
                self._pending["ids"].extend(ids[document:stop])
            document, token = stop, end
            if self._pending_tokens >= self._block_tokens:
                self._close_block()

    def _close_block(self) -> None:
        pending, self._pending, self._pending_tokens = self._pending, defaultdict(list), 0
        lengths = np.concatenate(pending["lengths"])
        members: dict[str, np.ndarray | bytes] = {
            "ends": np.cumsum(lengths).astype(ENDS_DTYPE),
            "tokens": np.concatenate(pending["tokens"]),
        }
        for name in ("words", "targets"):
            if pending[name]:
                members[name] = np.packbits(np.concatenate(pending[name]), bitorder="little")
        if pending["ids"]:
            members["ids"] = orjson.dumps(pending["ids"])
        size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in members.values())
        if self._shard is not None and self._shard.tar.bytes + size > self._shard_bytes:
            self._close_shard()
        self._write_block(self._shard or self._open_shard(), members, lengths)
        self._next_block += 1

    def _write_block(self, shard: _OpenShard, members: dict[str, np.ndarray | bytes], lengths: np.ndarray) -> None:
        tar = shard.tar
        record = np.zeros((), block_record(self._version))
        record["task"], record["number"] = self._task, self._next_block
        record["documents"], record["tokens"] = len(lengths), lengths.sum()
        record["first_document"] = shard.documents
        for name, member in sorted(members.items()):
            header, suffix = (b"", "json") if isinstance(member, bytes) else (npy_header(member), "npy")
            data = memoryview(member if isinstance(member, bytes) else member.data).cast("B")
            tar.write(tar_header(f"{block_key(self._task, self._next_block)}.{name}.{suffix}", len(header) + len(data)))
            tar.write(header)
            record[f"{name}_offset"] = tar.bytes
            record[f"{name}_xxh3"] = xxh3(member)
            if name == "ids":
                record["ids_bytes"] = len(data)
            tar.write(data)
            tar.write(bytes(-tar.bytes % _TAR_BLOCK))
        shard.add(record, lengths)

    def _open_shard(self) -> _OpenShard:
        name = shard_name(self._task, len(self.shards))
        file = self._stack.enter_context(atomic_writer(self._folder / name))
        self._shard = _OpenShard(name, _Hashing(file))
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is None:
            return
        shard, self._shard = self._shard, None
        shard.tar.write(bytes(2 * _TAR_BLOCK))
        shard.tar.write(bytes(-shard.tar.bytes % tarfile.RECORDSIZE))
        self._stack.close()
        index = b"".join(_index_parts(shard, self._dtype, self._version))
        with atomic_writer(self._folder / index_name(shard.name)) as file:
            file.write(index)
        self.shards.append(
            ShardInfo(
                name=shard.name,
                bytes=shard.tar.bytes,
                sha256=shard.tar.sha256.hexdigest(),
                index_bytes=len(index),
                index_sha256=hashlib.sha256(index).hexdigest(),
                **shard.totals(),
            )
        )


def _index_parts(shard: _OpenShard, dtype: np.dtype, version: int) -> Iterator[bytes]:
    header = np.zeros((), INDEX_HEADER)
    header["magic"], header["version"], header["token_bytes"] = INDEX_MAGIC, version, dtype.itemsize
    for name, total in shard.totals().items():
        header[name] = total
    yield header.tobytes()
    yield np.stack(shard.records).tobytes()
    yield np.concatenate(shard.lengths).tobytes()
