"""Write data sets: shards (byte-reproducible tars of blocks, each with its index) and the manifest."""

import contextlib
import hashlib
import io
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from data_prep.common.errors import UserError
from data_prep.common.files import HashedFile, atomic_writer, write_file
from data_prep.format.manifest import ShardInfo
from data_prep.format.shard_format import (
    ENDS_DTYPE,
    FORMAT_VERSION,
    INDEX_HEADER,
    INDEX_MAGIC,
    MAX_IDS_BYTES,
    RECORDS,
    TARGETS_VERSION,
    block_key,
    index_name,
    shard_name,
    xxh3,
)

TAR_BLOCK = 512


def tar_header(name: str, size: int) -> bytes:
    """The 512 bytes of a POSIX ustar header. A member of `size` bytes is padded to a multiple of 512."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o444, 0
    return info.tobuf(tarfile.USTAR_FORMAT)


def member_header(key: str, name: str, dtype: np.dtype, count: int) -> tuple[str, bytes]:
    """File name of a block's member, and the bytes before its data: a tar header and, except for `ids`, an .npy header.

    The data are `count` elements of `dtype`; of `ids`, the bytes of a JSON list.
    """
    npy = io.BytesIO()
    if name != "ids":
        description = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(npy, description)
    file = f"{key}.{name}.{'json' if name == 'ids' else 'npy'}"
    return file, tar_header(file, len(npy.getvalue()) + count * dtype.itemsize) + npy.getvalue()


@dataclass
class _OpenShard:
    name: str
    tar: HashedFile
    records: list[np.ndarray] = field(default_factory=list)
    lengths: list[np.ndarray] = field(default_factory=list)  # of the documents of each block

    def totals(self) -> dict[str, int]:
        documents, tokens = (sum(int(record[name]) for record in self.records) for name in ("documents", "tokens"))
        return {"blocks": len(self.records), "documents": documents, "tokens": tokens}


class ShardWriter:
    """Writer of the documents of one task as blocks and shards in `folder`; a context manager.

    A shard and its index appear under their names when they are complete; `shards` lists them. After an exception,
    finished shards remain, and the unfinished one is removed. With `targets`, shards have format version 2.
    """

    BLOCK_TOKENS = 1 << 18  # a block closes with the document that reaches this many tokens
    SHARD_BYTES = 256 << 20  # a shard closes before the block that would pass this size

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
                if self._pending_tokens:
                    self._close_block()
                self._close_shard()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())  # the unfinished shard does not get its name
            raise
        self._stack.__exit__(kind, error, trace)

    def add(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        word_starts: np.ndarray | None = None,
        ids: Sequence[str | int] | None = None,
        targets: np.ndarray | None = None,
    ) -> None:
        """Append documents: their tokens [n_tokens], concatenated, and the length of each [n_documents].

        Give word starts bool [n_tokens] and ids [n_documents] for every document or for none, and targets bool
        [n_tokens] if the writer was made with `targets`. Raises ValueError for a document without tokens, and for a
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
            if len(members["ids"]) > MAX_IDS_BYTES:
                raise UserError(f"The ids of a block have more than {MAX_IDS_BYTES:,} bytes. Leave out --id-field.")
        size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in members.values())
        if self._shard is not None and self._shard.tar.bytes + size > self._shard_bytes:
            self._close_shard()
        self._write_block(self._shard or self._open_shard(), members, lengths)
        self._next_block += 1

    def _write_block(self, shard: _OpenShard, members: dict[str, np.ndarray | bytes], lengths: np.ndarray) -> None:
        tar = shard.tar
        record = np.zeros((), RECORDS[self._version])
        record["task"], record["number"] = self._task, self._next_block
        record["documents"], record["tokens"] = len(lengths), lengths.sum()
        record["first_document"] = shard.totals()["documents"]
        for name, member in sorted(members.items()):
            data = memoryview(member if isinstance(member, bytes) else member.data).cast("B")
            if isinstance(member, bytes):
                record["ids_bytes"] = len(data)
                member = np.frombuffer(member, "u1")
            _, header = member_header(block_key(self._task, self._next_block), name, member.dtype, len(member))
            tar.write(header)
            record[f"{name}_offset"] = tar.bytes
            record[f"{name}_xxh3"] = xxh3(data)
            tar.write(data)
            tar.write(bytes(-tar.bytes % TAR_BLOCK))
        shard.records.append(record)
        shard.lengths.append(lengths)

    def _open_shard(self) -> _OpenShard:
        name = shard_name(self._task, len(self.shards))
        file = self._stack.enter_context(atomic_writer(self._folder / name))
        self._shard = _OpenShard(name, HashedFile(file, hashlib.sha256()))
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is None:
            return
        shard, self._shard = self._shard, None
        shard.tar.write(bytes(2 * TAR_BLOCK))
        shard.tar.write(bytes(-shard.tar.bytes % tarfile.RECORDSIZE))
        self._stack.close()
        index = b"".join(_index_parts(shard, self._dtype, self._version))
        write_file(self._folder / index_name(shard.name), index)
        self.shards.append(
            ShardInfo(
                name=shard.name,
                bytes=shard.tar.bytes,
                sha256=shard.tar.digest.hexdigest(),
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
