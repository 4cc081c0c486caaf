"""Deep check of shards: every byte of their tars and indexes, compared with the manifest.

The tar is never unpacked, and no size in it is trusted. The index says where each member is, and each header must have
exactly the bytes that the writer gives to it. So links, devices, other paths and other files are reported.
"""

import dataclasses
import functools
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from data_prep.common.files import sha256_file
from data_prep.common.processes import ordered_map
from data_prep.format.manifest import Manifest, ShardInfo, SourceInfo, TokenizerInfo, fingerprint, shard_index
from data_prep.format.shard_format import (
    ENDS_DTYPE,
    RECORDS,
    bit_members,
    block_key,
    block_keys,
    document_ids,
    member_bytes,
    xxh3,
)
from data_prep.format.shard_writer import TAR_BLOCK, member_header

_CHUNK = 1 << 20  # tokens of one comparison
_KINDS = {b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "device", b"5": "folder", b"6": "FIFO"}


def data_set_problems(
    folder: Path, manifest: Manifest, workers: int, progress: Callable[[int, int], None] | None
) -> Iterator[str]:
    """All problems of the shards in `folder`/shards, and differences between their indexes and the manifest.

    Reads every byte, in `workers` processes; `progress` receives the bytes read and all bytes. Nothing is unpacked.
    """
    check = functools.partial(_shard_problems, folder, dataclasses.replace(manifest, shards=[], sources=[]))
    tables = []
    done, total = 0, sum(shard.bytes for shard in manifest.shards)
    for shard, report in zip(manifest.shards, ordered_map(check, manifest.shards, workers), strict=True):
        problems, table = report
        yield from problems
        if table is not None:
            tables.append(table)
        done += shard.bytes
        if progress:
            progress(done, total)
    if len(tables) == len(manifest.shards):
        yield from _manifest_problems(manifest, tables)


def _shard_problems(folder: Path, manifest: Manifest, shard: ShardInfo) -> tuple[list[str], np.ndarray | None]:
    """All problems of a shard in `folder`/shards, and its block table [blocks] if the index is sound."""
    tar, index = folder / "shards" / shard.name, folder / "shards" / shard.index_name
    problems = _file_problem(tar, shard.bytes, shard.sha256)
    if wrong := _file_problem(index, shard.index_bytes, shard.index_sha256):
        return problems + wrong, None
    dtype = manifest.tokenizer.dtype
    try:
        table, lengths = shard_index(index.read_bytes(), shard, dtype, manifest.format_version)
    except ValueError as error:
        return [*problems, f"{shard.index_name}: {error}"], None
    table = table.copy()  # so that the document lengths do not stay in memory
    try:
        content = np.memmap(tar, "u1", "r") if tar.stat().st_size else np.zeros(0, "u1")
    except OSError:
        return problems, table  # reported by _file_problem
    problems += [f"{shard.name}{line}" for line in _content_problems(content, table, lengths, manifest.tokenizer)]
    return problems, table


def _file_problem(path: Path, size: int, digest: str) -> list[str]:
    try:
        if not path.is_file():
            return [f"{path.name}: missing"]
        if (actual := path.stat().st_size) != size:
            return [f"{path.name}: {actual} bytes instead of {size}"]
        if (computed := sha256_file(path)) != digest:
            return [f"{path.name}: SHA-256 {computed} instead of {digest}"]
    except OSError as error:
        return [f"{path.name}: it cannot be read: {error.strerror}"]
    return []


def _content_problems(tar: np.ndarray, table: np.ndarray, lengths: np.ndarray, info: TokenizerInfo) -> Iterator[str]:
    ends = [
        np.where(table[f"{name}_offset"], table[f"{name}_offset"].astype(np.int64) + size, 0)
        for name, size in member_bytes(table, info.dtype.itemsize).items()
    ]
    lost = np.max(ends, axis=0) > len(tar)
    if lost.any():
        documents, tokens = (int(table[lost][name].sum()) for name in ("documents", "tokens"))
        first = table[lost][0]
        yield (
            f": {lost.sum()} of {len(table)} blocks ({documents} documents, {tokens} tokens) lie beyond the end of "
            f"the file, from block {block_key(first['task'], first['number'])} on"
        )
    for record in table[~lost]:
        first = int(record["first_document"])
        part = lengths[first : first + int(record["documents"])]
        for problem in _block_problems(tar, record, part, info):
            yield f" block {block_key(record['task'], record['number'])}: {problem}"
    if difference := _tar_problem(tar, table, info.dtype):
        yield f": {difference}"


def _block_problems(tar: np.ndarray, record: np.void, lengths: np.ndarray, info: TokenizerInfo) -> Iterator[str]:
    arrays = {
        name: tar[offset : offset + count * dtype.itemsize].view(dtype)
        for name, offset, dtype, count in _members(record, info.dtype)
    }
    if "words" not in arrays and info.continuation_prefix is None:
        yield "it has no word starts, and the vocabulary alone does not determine them"
    damaged = set()
    for name, array in arrays.items():
        if (computed := xxh3(array)) != record[f"{name}_xxh3"]:
            damaged.add(name)
            yield f"the {name} have checksum {computed:016x} instead of {int(record[f'{name}_xxh3']):016x}"
    if "ends" not in damaged and not np.array_equal(np.cumsum(lengths, dtype=np.uint64), arrays["ends"]):
        yield "the document ends differ from the document lengths of the index"
    if "ids" in arrays.keys() - damaged:
        try:
            document_ids(arrays["ids"].tobytes(), len(lengths))
        except ValueError as error:
            yield f"the ids are not valid: {error}"
    if "tokens" not in damaged:
        yield from _token_problems(arrays["tokens"], lengths, info)


def _members(record: np.void, dtype: np.dtype) -> Iterator[tuple[str, int, np.dtype, int]]:
    """Name, offset, dtype and elements of each member of a block, in the order of the tar. `ids` are bytes of JSON."""
    documents, tokens, byte = int(record["documents"]), int(record["tokens"]), np.dtype("u1")
    members: dict[str, tuple[np.dtype, int]] = dict.fromkeys(bit_members(record.dtype), (byte, -(-tokens // 8)))
    members |= {"ends": (ENDS_DTYPE, documents), "ids": (byte, int(record["ids_bytes"])), "tokens": (dtype, tokens)}
    for name, (kind, count) in sorted(members.items()):
        if offset := int(record[f"{name}_offset"]):
            yield name, offset, kind, count


def _token_problems(tokens: np.ndarray, lengths: np.ndarray, info: TokenizerInfo) -> Iterator[str]:
    largest, counts, separators = 0, dict.fromkeys(("pad", "cls", "mask"), 0), []
    for start in range(0, len(tokens), _CHUNK):  # a block may be larger than the memory
        part = tokens[start : start + _CHUNK]
        largest = max(largest, int(part.max()))
        for name in counts:
            counts[name] += int(np.count_nonzero(part == info.special_ids[name]))
        separators.append(start + np.flatnonzero(part == info.special_ids["sep"]))
    counts["sep"] = _misplaced(np.concatenate(separators), lengths)
    if largest >= info.vocab_size:
        yield f"id {largest} is not in the vocabulary of {info.vocab_size}"
    for name, count in counts.items():
        if count:
            yield f"{count} {name} tokens in the documents"


def _misplaced(separators: np.ndarray, lengths: np.ndarray) -> int:
    """Number of [SEP], by their places in the block, that are not the only one between the two texts of a document."""
    ends = np.cumsum(lengths, dtype=np.int64)
    document = np.searchsorted(ends, separators, side="right")
    after = separators - (ends - lengths)[document]
    wrong = (after == 0) | (after == lengths[document] - 1)
    wrong[1:] |= document[1:] == document[:-1]
    return int(np.count_nonzero(wrong))


def _tar_problem(tar: np.ndarray, table: np.ndarray, dtype: np.dtype) -> str | None:
    """The first difference between the members of `tar`, uint8 [bytes], and the block table [blocks]."""
    position = 0
    for record in table:
        key = block_key(record["task"], record["number"])
        for name, offset, kind, count in _members(record, dtype):
            file, header = member_header(key, name, kind, count)
            start, end = position + len(header), position + len(header) + count * kind.itemsize
            stored = tar[position:start].tobytes()
            if stored[:TAR_BLOCK] != header[:TAR_BLOCK]:
                return f"{_described(stored) or 'something else'} stands where {file!r} should be"
            if stored != header:
                return f"member {file!r} does not begin as the .npy array of the index"
            if offset != start:
                return f"member {file!r} starts at {start}, in the index at {offset}"
            position = -(-end // TAR_BLOCK) * TAR_BLOCK
            if tar[end:position].any():
                return f"bytes that are not 0 follow member {file!r}"
    end = -(-(position + 2 * TAR_BLOCK) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    if tar[position:end].any():
        member = _described(tar[position:end].tobytes())
        return f"{member} is not in the index" if member else "data follow its end marker or its last member"
    return None if len(tar) == end else f"it has {len(tar)} bytes instead of {end}, the end marker included"


def _described(data: bytes) -> str:
    """Name, kind and size of the member whose tar header begins `data`; empty for other data."""
    try:
        member = tarfile.TarInfo.frombuf(data[:TAR_BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return ""
    kind = "file" if member.type == tarfile.REGTYPE else _KINDS.get(member.type, f"type {member.type!r}")
    return f"member {member.name[:100]!a} ({kind} of {member.size} bytes)"


def _manifest_problems(manifest: Manifest, tables: list[np.ndarray]) -> Iterator[str]:
    """Differences between the manifest and the block tables of all shards."""
    info, version = manifest.tokenizer, manifest.format_version
    computed = fingerprint(info.sha256, info.dtype, tables, version)
    if computed != manifest.fingerprint:
        yield f"manifest.json: the fingerprint is {manifest.fingerprint} but the indexes give {computed}"
    table = np.concatenate([*tables, np.zeros(0, RECORDS[version])])
    if len(np.unique(block_keys(table))) < len(table):
        yield "manifest.json: two blocks have the same key"
    yield from _source_problems(manifest.sources, table)


def _source_problems(sources: list[SourceInfo], table: np.ndarray) -> Iterator[str]:
    """Inputs with other counts than the blocks of their tasks."""
    table = table[np.argsort(table["task"], kind="stable")]
    sums = {name: np.append(0, np.cumsum(table[name].astype(np.int64))) for name in ("documents", "tokens")}
    covered = 0
    for source in sources:
        first, last = np.searchsorted(table["task"], [source.first_task, source.first_task + source.tasks])
        covered += last - first
        for name, ends in sums.items():
            if (actual := ends[last] - ends[first]) != getattr(source, name):
                yield f"manifest.json: {source.name!r} has {getattr(source, name)} {name}, its blocks have {actual}"
    if sources and covered != len(table):
        yield f"manifest.json: the inputs' tasks have {covered} blocks, the shards {len(table)}"
