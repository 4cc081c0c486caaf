"""Small data sets for tests, written by the real writer."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.format import Dataset, Manifest, ShardWriter, TokenizerInfo
from data_prep.format.shard_writer import tar_header

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def tokenizer_info(vocab_size: int, continuation_prefix: str | None = "##") -> TokenizerInfo:
    """A tokenizer's description, with ids 0 to 4 special."""
    return TokenizerInfo("0" * 64, {}, vocab_size, SPECIAL_IDS, sorted(SPECIAL_IDS.values()), continuation_prefix)


def make_dataset(
    folder: Path,
    documents: Iterable[Sequence[int]],
    vocab_size: int = 1000,
    block_tokens: int = ShardWriter.BLOCK_TOKENS,
    shard_bytes: int = ShardWriter.SHARD_BYTES,
    word_starts: Iterable[np.ndarray] | None = None,
    ids: Sequence[str | int] | None = None,
    targets: Sequence[np.ndarray] | None = None,
    special_ids: dict[str, int] | None = None,
) -> Dataset:
    """Write token-id `documents` as a data set at `folder` (one task) and open it; there are no tokenizer files."""
    (folder / "shards").mkdir(parents=True)
    starts = iter(word_starts) if word_starts is not None else None
    info, pairs = tokenizer_info(vocab_size, "##" if word_starts is None else None), targets is not None
    info = replace(info, special_ids=SPECIAL_IDS | (special_ids or {}))
    with ShardWriter(folder / "shards", 0, info.dtype, block_tokens, shard_bytes, pairs) as writer:
        for number, document in enumerate(documents):
            words = next(starts) if starts is not None else None
            wrong = targets[number] if targets is not None else None
            writer.add(np.asarray(document), np.array([len(document)]), words, [ids[number]] if ids else None, wrong)
    Manifest.write(folder, info, writer.shards, [], pairs)
    return Dataset(folder)


def random_dataset(folder: Path, count: int = 60, shard_bytes: int = 8000, targets: bool = False) -> Dataset:
    """A data set of random documents, in several shards of blocks of 1,000 tokens."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 1000, size=n) for n in rng.integers(1, 300, size=count)]
    bits = [document % 3 == 0 for document in documents] if targets else None
    dataset = make_dataset(folder, documents, block_tokens=1000, shard_bytes=shard_bytes, targets=bits)
    assert len(dataset.manifest.shards) > 2
    return dataset


def documents_of(dataset: Dataset) -> list[list[int]]:
    """The token ids of each document."""
    blocks = (np.split(dataset.tokens(n), dataset.document_ends(n)[:-1]) for n in range(dataset.n_blocks))
    return [document.tolist() for block in blocks for document in block]


def edit_manifest(folder: Path, **values: Any) -> None:
    """Set keys of a data set's manifest. The value `...` removes a key."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes()) | values
    path.write_text(json.dumps({key: value for key, value in manifest.items() if value is not ...}))


def tar_member(name: str, payload: bytes) -> bytes:
    """A member of a tar, filled up to a multiple of 512 bytes."""
    return tar_header(name, len(payload)) + payload + bytes(-len(payload) % 512)


def flip(path: Path, position: int | None = None) -> Path:
    """Change a bit of a byte of a file, by default in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 4
    path.write_bytes(data)
    return path
