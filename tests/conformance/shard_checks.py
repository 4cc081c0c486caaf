"""Checks of a data set's shards in other people's tools. Each raises unless it finds the documents of `wanted`.

`as_documents` is the only decoding: the arrays `tokens` and `ends` of a block (docs/data-format.md).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

Documents = list[list[int]]
"""The token ids of each document, in the order of the input."""


def as_documents(block: dict[str, Any]) -> Documents:
    """Cut a block's tokens into documents."""
    return [part.tolist() for part in np.split(np.asarray(block["tokens.npy"]), np.asarray(block["ends.npy"]))[:-1]]


def shards(dataset: Path) -> list[str]:
    return [str(path) for path in sorted((dataset / "shards").glob("*.tar"))]


def webdataset(dataset: Path, wanted: Documents) -> None:
    """`webdataset.WebDataset(...).decode()`"""
    import webdataset as wds

    blocks = list(wds.WebDataset(shards(dataset), shardshuffle=False).decode())
    assert _documents(blocks) == wanted


def load_dataset(dataset: Path, wanted: Documents) -> None:
    """`datasets.load_dataset("webdataset")`, read from the disk and streamed."""
    import datasets

    files = {"data_files": {"train": shards(dataset)}, "split": "train", "cache_dir": str(dataset / "cache")}
    for streaming in (False, True):
        blocks = datasets.load_dataset("webdataset", streaming=streaming, **files)
        assert _documents(blocks) == wanted


def data_loader(dataset: Path, wanted: Documents) -> None:
    """`torch.utils.data.DataLoader` with two workers: each document once."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    assert len(shards(dataset)) >= 2, "a worker would have no shard"
    read = wds.WebDataset(shards(dataset), shardshuffle=False).decode().map(as_documents)
    found = [document for block in DataLoader(read, batch_size=None, num_workers=2) for document in block]
    assert sorted(found) == sorted(wanted)


def _documents(blocks: Iterable[dict[str, Any]]) -> Documents:
    return [document for block in blocks for document in as_documents(block)]
