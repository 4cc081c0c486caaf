"""The last step of preparing data: the manifest that makes a folder of shards a data set."""

from collections.abc import Sequence
from pathlib import Path

from data_prep.files import write_json
from data_prep.format import (
    FORMAT,
    FORMAT_VERSION,
    Manifest,
    ShardInfo,
    SourceInfo,
    TokenizerInfo,
    Totals,
    fingerprint,
    read_index,
    token_dtype,
)


def write_manifest(
    folder: Path, tokenizer: TokenizerInfo, shards: Sequence[ShardInfo], sources: Sequence[SourceInfo]
) -> Manifest:
    """Write manifest.json for finished shards under `folder`/shards, and return it."""
    dtype = token_dtype(tokenizer.vocab_size)
    tables = (read_index((folder / "shards" / shard.index_name).read_bytes())[1] for shard in shards)
    manifest = Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        fingerprint=fingerprint(tokenizer.sha256, dtype, tables),
        tokenizer=tokenizer,
        dtype=dtype.name,
        totals=Totals(
            documents=sum(shard.documents for shard in shards),
            tokens=sum(shard.tokens for shard in shards),
            blocks=sum(shard.blocks for shard in shards),
        ),
        shards=list(shards),
        sources=list(sources),
    )
    write_json(folder / "manifest.json", manifest.to_json())
    return manifest
