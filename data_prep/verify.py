"""The deep check of a data set: reads every byte and says all that is wrong, not only the first thing."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_prep.files import sha256_file
from data_prep.format import Manifest, ShardInfo, block_key, fingerprint, read_index, read_manifest, xxh3

_NPY_HEADER_BYTES = 128


def verify(folder: Path) -> Iterator[str]:
    """A line for each problem, naming shard and block; none for a sound data set.

    Checks checksums of tars, indexes, blocks and tokenizer files; the tars' members against the indexes; document ends
    against lengths; that ids are below the vocabulary size and none is a pad, cls, sep or mask. Raises UserError where
    the folder has no readable manifest.
    """
    manifest = read_manifest(folder)
    yield from _tokenizer_problems(folder / "tokenizer", manifest)
    tables = []
    for shard in manifest.shards:
        path, index = folder / "shards" / shard.name, folder / "shards" / shard.index_name
        sound = True
        for file, size, digest in ((path, shard.bytes, shard.sha256), (index, shard.index_bytes, shard.index_sha256)):
            for problem in _file_problems(file, size, digest):
                sound = False
                yield problem
        if index.is_file() and sha256_file(index) == shard.index_sha256:
            data = index.read_bytes()
            tables.append(read_index(data)[1])
            if path.is_file():
                yield from _shard_problems(path, shard, data, manifest, tar_is_sound=sound)
    found = fingerprint(manifest.tokenizer.sha256, np.dtype(manifest.dtype), tables)
    if len(tables) == len(manifest.shards) and found != manifest.fingerprint:
        yield f"manifest.json: the fingerprint is {manifest.fingerprint} but the indexes give {found}"
    listed = {shard.name for shard in manifest.shards}
    for path in sorted((folder / "shards").glob("*.tar")):
        if path.name not in listed:
            yield f"{path.name}: not in the manifest"


def _tokenizer_problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    for name, digest in manifest.tokenizer.files.items():
        path = folder / Path(name).name
        if not path.is_file():
            yield f"tokenizer/{name}: missing"
        elif sha256_file(path) != digest:
            yield f"tokenizer/{name}: the file is not the one the data was made with (SHA-256 differs)"


def _file_problems(path: Path, size: int, digest: str) -> Iterator[str]:
    if not path.is_file():
        yield f"{path.name}: missing"
    elif path.stat().st_size != size:
        yield f"{path.name}: {path.stat().st_size} bytes instead of {size}"
    elif (found := sha256_file(path)) != digest:
        yield f"{path.name}: SHA-256 {found} instead of {digest}"


def _shard_problems(
    path: Path, shard: ShardInfo, index: bytes, manifest: Manifest, tar_is_sound: bool
) -> Iterator[str]:
    header, table, lengths = read_index(index)
    for name in ("blocks", "documents", "tokens"):
        if header[name] != getattr(shard, name):
            yield f"{shard.index_name}: {header[name]} {name}, the manifest has {getattr(shard, name)}"
    data = np.memmap(path, "u1", "r")
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    for record in table:
        first, documents = int(record["first_document"]), int(record["documents"])
        for problem in _block_problems(data, record, lengths[first : first + documents], dtype, manifest):
            yield f"{shard.name} block {block_key(record['task'], record['number'])}: {problem}"
    # A damaged tar has been named already, block by block; its headers matter only if the manifest vouches for them.
    if tar_is_sound:
        yield from _member_problems(path, shard, table, dtype)


def _block_problems(
    data: np.ndarray, record: np.void, lengths: np.ndarray, dtype: np.dtype, manifest: Manifest
) -> Iterator[str]:
    tokens = _array(data, record, "tokens", dtype, int(record["tokens"]))
    ends = _array(data, record, "ends", np.dtype("<u4"), int(record["documents"]))
    arrays = {"tokens": tokens, "ends": ends}
    if record["words_offset"]:
        arrays["words"] = _array(data, record, "words", np.dtype("u1"), -(-int(record["tokens"]) // 8))
    elif manifest.tokenizer.continuation_prefix is None:
        yield "it has no word starts, and the vocabulary does not tell them"
    damaged = False
    for name, array in arrays.items():
        if array is None:
            damaged = True
            yield f"the {name} lie beyond the end of the file"
        elif (found := xxh3(array)) != record[f"{name}_xxh3"]:
            damaged = True
            yield f"the {name} have checksum {found:016x} instead of {int(record[f'{name}_xxh3']):016x}"
    if damaged or tokens is None or ends is None:
        return
    if not np.array_equal(np.cumsum(lengths, dtype=np.uint64), ends):
        yield "the document ends do not go with the document lengths of the index"
    if lengths.sum() != record["tokens"] or not lengths.all():
        yield f"the document lengths do not add up to {record['tokens']} tokens, or one is 0"
    if len(tokens):
        yield from _id_problems(tokens, manifest)


def _id_problems(tokens: np.ndarray, manifest: Manifest) -> Iterator[str]:
    info = manifest.tokenizer
    if (largest := int(tokens.max())) >= info.vocab_size:
        yield f"id {largest} is not in the vocabulary of {info.vocab_size}"
    for name in ("pad", "cls", "sep", "mask"):
        if count := int((tokens == info.special_ids[name]).sum()):
            yield f"{count} {name} tokens in the documents"


def _member_problems(path: Path, shard: ShardInfo, table: np.ndarray, dtype: np.dtype) -> Iterator[str]:
    expected = []
    for record in table:
        key = block_key(record["task"], record["number"])
        sizes = {"ends": 4 * int(record["documents"]), "tokens": dtype.itemsize * int(record["tokens"])}
        if record["words_offset"]:
            sizes["words"] = -(-int(record["tokens"]) // 8)
        for name, size in sizes.items():
            offset = int(record[f"{name}_offset"]) - _NPY_HEADER_BYTES
            expected.append((f"{key}.{name}.npy", offset, size + _NPY_HEADER_BYTES))
    try:
        with tarfile.open(path, "r:") as tar:
            found = [(member.name, member.offset_data, member.size) for member in tar if member.isreg()]
            others = [member.name for member in tar if not member.isreg()]
    except tarfile.TarError as error:
        yield f"{shard.name}: not a readable tar: {error}"
        return
    if others:
        yield f"{shard.name}: {others[0]!r} is not a regular file"
    for have, want in zip(found, expected, strict=False):
        if have != want:
            yield f"{shard.name}: member {have} where the index has {want} (name, offset, bytes)"
            return
    if len(found) != len(expected):
        yield f"{shard.name}: {len(found)} members where the index has {len(expected)}"


def _array(data: np.ndarray, record: np.void, name: str, dtype: np.dtype, count: int) -> np.ndarray | None:
    start = int(record[f"{name}_offset"])
    part = data[start : start + count * dtype.itemsize]
    return part.view(dtype) if len(part) == count * dtype.itemsize else None
