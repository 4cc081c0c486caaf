"""The deep check of a data set: reads every byte and says all that is wrong, not only the first thing."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.errors import UserError
from data_prep.files import map_file, sha256_file
from data_prep.format import Manifest, ShardInfo, SourceInfo, TokenizerInfo, tokenizer_digest
from data_prep.format.integrity_checks import bit_members, block_keys, document_ids, member_bytes
from data_prep.format.local_storage import read_manifest
from data_prep.format.shard_format import ENDS_DTYPE, block_key, block_record, fingerprint, shard_index, xxh3
from data_prep.inspection.tar_check import tar_problem
from data_prep.processes import ordered_map
from data_prep.tokenizer import hf_tokenizer as tokenizer

_CHUNK = 1 << 20  # tokens looked at together

Progress = Callable[[int, int], None]


def verify(folder: Path, workers: int = 1, progress: Progress | None = None) -> Iterator[str]:
    """A line for each problem, naming shard and block; none for a sound data set. Problems come in manifest order.

    Checks checksums of tars, indexes, blocks and tokenizer files; the tars' members against the indexes; document ends
    against lengths; ids against documents; that tokens are below the vocabulary size and none is a pad, cls, sep or
    mask; the inputs' counts; the fingerprint; and that no other files lie beside. `workers` processes each take a shard
    at a time; `progress` is told the bytes read and those of the data set. Nothing is written, unpacked or executed.

    Raises:
        UserError: where the folder has no readable manifest, or a worker process dies.
    """
    manifest = read_manifest(folder)
    yield from _tokenizer_problems(folder / "tokenizer", manifest.tokenizer)
    check = _ShardCheck(folder / "shards", manifest.tokenizer, manifest.dtype, manifest.format_version)
    reports = ordered_map(check, manifest.shards, workers)
    tables = []
    done, total = 0, sum(shard.bytes for shard in manifest.shards)
    for shard, report in zip(manifest.shards, reports, strict=True):
        problems, table = report
        yield from problems
        if table is not None:
            tables.append(table)
        done += shard.bytes
        if progress:
            progress(done, total)
    if len(tables) == len(manifest.shards):
        yield from _whole_problems(manifest, tables)
    known = {name for shard in manifest.shards for name in (shard.name, shard.index_name)}
    yield from _strangers(folder / "shards", known)


@dataclass(frozen=True)
class _ShardCheck:
    """The check of one shard, in a form that can be sent to another process.

    It gives what is wrong, and the block table [blocks] if that can be read.
    """

    folder: Path
    tokenizer: TokenizerInfo
    dtype: str
    version: int

    def __call__(self, shard: ShardInfo) -> tuple[list[str], np.ndarray | None]:
        tar, index = self.folder / shard.name, self.folder / shard.index_name
        tar_is_wrong = _file_problem(tar, shard.bytes, shard.sha256)
        index_is_wrong = _file_problem(index, shard.index_bytes, shard.index_sha256)
        problems = [problem for problem in (tar_is_wrong, index_is_wrong) if problem]
        if index_is_wrong:
            return problems, None
        dtype = np.dtype(self.dtype).newbyteorder("<")
        try:
            table, lengths = shard_index(map_file(index), shard, dtype, self.version)
        except ValueError as error:
            return [*problems, f"{shard.index_name}: {error}"], None
        table = table.copy()
        try:
            content = np.frombuffer(map_file(tar), "u1") if tar.stat().st_size else np.zeros(0, "u1")
        except OSError:
            return problems, table  # it is missing or cannot be read, as has been said
        problems += [f"{shard.name}{line}" for line in self._content_problems(content, table, lengths, dtype)]
        return problems, table

    def _content_problems(
        self, tar: np.ndarray, table: np.ndarray, lengths: np.ndarray, dtype: np.dtype
    ) -> Iterator[str]:
        lost = _end_of_blocks(table, dtype) > len(tar)
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
            for problem in self._block_problems(tar, record, part, dtype):
                yield f" block {block_key(record['task'], record['number'])}: {problem}"
        if wrong := tar_problem(tar, table, dtype):
            yield f": {wrong}"

    def _block_problems(self, tar: np.ndarray, record: np.void, lengths: np.ndarray, dtype: np.dtype) -> Iterator[str]:
        documents, tokens = int(record["documents"]), int(record["tokens"])
        arrays = {
            "tokens": _array(tar, record, "tokens", dtype, tokens),
            "ends": _array(tar, record, "ends", ENDS_DTYPE, documents),
        }
        for name in bit_members(record.dtype):
            if record[f"{name}_offset"]:
                arrays[name] = _array(tar, record, name, np.dtype("u1"), -(-tokens // 8))
        if not record["words_offset"] and self.tokenizer.continuation_prefix is None:
            yield "it has no word starts, and the vocabulary does not tell them"
        if record["ids_offset"]:
            arrays["ids"] = _array(tar, record, "ids", np.dtype("u1"), int(record["ids_bytes"]))
        damaged = set()
        for name, array in arrays.items():
            if (found := xxh3(array)) != record[f"{name}_xxh3"]:
                damaged.add(name)
                yield f"the {name} have checksum {found:016x} instead of {int(record[f'{name}_xxh3']):016x}"
        if "ends" not in damaged and not np.array_equal(np.cumsum(lengths, dtype=np.uint64), arrays["ends"]):
            yield "the document ends do not go with the document lengths of the index"
        if "ids" in arrays.keys() - damaged:
            try:
                document_ids(arrays["ids"].tobytes(), documents)
            except ValueError as error:
                yield f"the ids are not valid: {error}"
        if "tokens" not in damaged:
            yield from self._token_problems(arrays["tokens"])

    def _token_problems(self, tokens: np.ndarray) -> Iterator[str]:
        specials = {name: self.tokenizer.special_ids[name] for name in ("pad", "cls", "sep", "mask")}
        largest, counts = 0, dict.fromkeys(specials, 0)
        for start in range(0, len(tokens), _CHUNK):
            part = tokens[start : start + _CHUNK]
            largest = max(largest, int(part.max()))
            for name, id in specials.items():
                counts[name] += np.count_nonzero(part == id)
        if largest >= self.tokenizer.vocab_size:
            yield f"id {largest} is not in the vocabulary of {self.tokenizer.vocab_size}"
        for name, count in counts.items():
            if count:
                yield f"{count} {name} tokens in the documents"


def _array(tar: np.ndarray, record: np.void, name: str, dtype: np.dtype, count: int) -> np.ndarray:
    start = int(record[f"{name}_offset"])
    return tar[start : start + count * dtype.itemsize].view(dtype)


def _end_of_blocks(table: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Where the last member of each block ends, int64 [blocks]."""
    ends = [
        np.where(table[f"{name}_offset"], table[f"{name}_offset"].astype(np.int64) + size, 0)
        for name, size in member_bytes(table, dtype.itemsize).items()
    ]
    return np.max(ends, axis=0)


def _file_problem(path: Path, size: int, digest: str) -> str | None:
    try:
        if not path.is_file():
            return f"{path.name}: missing"
        if (found := path.stat().st_size) != size:
            return f"{path.name}: {found} bytes instead of {size}"
        if (hashed := sha256_file(path)) != digest:
            return f"{path.name}: SHA-256 {hashed} instead of {digest}"
    except OSError as error:
        return f"{path.name}: it cannot be read: {error.strerror}"
    return None


def _tokenizer_problems(folder: Path, info: TokenizerInfo) -> Iterator[str]:
    sound = bool(info.files)
    for name, digest in info.files.items():
        path = folder / name
        if not path.is_file():
            yield f"tokenizer/{name}: missing"
        elif sha256_file(path) != digest:
            yield f"tokenizer/{name}: the file is not the one the data was made with (SHA-256 differs)"
        else:
            continue
        sound = False
    yield from (f"tokenizer/{line}" for line in _strangers(folder, set(info.files)))
    if sound:
        yield from _description_problems(folder, info)


def _description_problems(folder: Path, info: TokenizerInfo) -> Iterator[str]:
    """Where the manifest says other things of the tokenizer than its files."""
    try:
        found = tokenizer.describe(folder)
    except UserError as error:
        yield f"tokenizer: {error}"
        return
    found = dataclasses.replace(found, sha256=tokenizer_digest(folder, info.files)[0])
    for name in ("sha256", "vocab_size", "special_ids", "all_special_ids", "continuation_prefix"):
        said, right = getattr(info, name), getattr(found, name)
        if said != right:
            yield f"manifest.json: the tokenizer's {name} is {said!r}, its files say {right!r}"


def _whole_problems(manifest: Manifest, tables: list[np.ndarray]) -> Iterator[str]:
    found = fingerprint(manifest.tokenizer.sha256, np.dtype(manifest.dtype), tables, manifest.format_version)
    if found != manifest.fingerprint:
        yield f"manifest.json: the fingerprint is {manifest.fingerprint} but the indexes give {found}"
    table = np.concatenate([*tables, np.zeros(0, block_record(manifest.format_version))])
    if len(np.unique(block_keys(table))) < len(table):
        yield "manifest.json: two blocks have the same key"
    yield from _source_problems(manifest.sources, table)


def _source_problems(sources: list[SourceInfo], table: np.ndarray) -> Iterator[str]:
    """Where the inputs' counts are not those of the blocks of their tasks."""
    order = np.argsort(table["task"], kind="stable")
    tasks = table["task"][order]
    sums = {
        name: np.concatenate([[0], np.cumsum(table[name][order].astype(np.int64))]) for name in ("documents", "tokens")
    }
    covered = 0
    for source in sources:
        first, last = np.searchsorted(tasks, [source.first_task, source.first_task + source.tasks])
        covered += last - first
        for name, upto in sums.items():
            if (found := upto[last] - upto[first]) != getattr(source, name):
                yield f"manifest.json: {source.name!r} has {getattr(source, name)} {name}, its blocks have {found}"
    if sources and covered != len(table):
        yield f"manifest.json: the inputs' tasks have {covered} blocks, the shards {len(table)}"


def _strangers(folder: Path, known: set[str]) -> Iterator[str]:
    """Names in a folder that the manifest does not give; what an interrupted writer leaves begins with a dot."""
    if folder.is_dir():
        for name in sorted(path.name for path in folder.iterdir()):
            if name not in known and not (name.startswith(".") and name.endswith(".tmp")):
                yield f"{name if name.isprintable() else ascii(name)}: not in the manifest"
