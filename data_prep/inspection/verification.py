"""Deep check of a data set: reads every byte and reports all problems, not only the first."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import sha256_file
from data_prep.format import Dataset, TokenizerInfo, data_set_problems
from data_prep.tokenizer import describe_tokenizer


def verify_data_set(
    folder: Path, workers: int = 1, progress: Callable[[int, int], None] | None = None
) -> Iterator[str]:
    """One line per problem, naming shard and block; none for a sound data set. Problems come in manifest order.

    Checks the checksums of tars, indexes, blocks and tokenizer files; the members of tars; document ends and ids; that
    ids are in the vocabulary and none is pad, cls, sep or mask; the counts of inputs; the fingerprint; and that there
    are no other files. `workers` processes check one shard each. `progress` receives the bytes read and all bytes.
    Nothing is written, unpacked or executed. Raises UserError if the folder has no readable manifest, or a worker
    process is killed.
    """
    dataset = Dataset(folder)
    yield from _tokenizer_problems(folder / "tokenizer", dataset.manifest.tokenizer)
    yield from data_set_problems(folder, dataset.manifest, workers, progress)
    known = {name for shard in dataset.manifest.shards for name in (shard.name, shard.index_name)}
    yield from _unknown_files(folder / "shards", known)


def _tokenizer_problems(folder: Path, info: TokenizerInfo) -> Iterator[str]:
    digests = {name: sha256_file(folder / name) if (folder / name).is_file() else None for name in info.files}
    for name, digest in digests.items():
        if digest is None:
            yield f"tokenizer/{name}: missing"
        elif digest != info.files[name]:
            yield f"tokenizer/{name}: the file is not the one the data was made with (SHA-256 differs)"
    yield from (f"tokenizer/{line}" for line in _unknown_files(folder, set(info.files)))
    if digests and digests == info.files:
        yield from _description_problems(folder, info)


def _description_problems(folder: Path, info: TokenizerInfo) -> Iterator[str]:
    """Differences between the manifest's description of the tokenizer and its files."""
    try:
        described = dataclasses.replace(describe_tokenizer(folder), sha256=TokenizerInfo.digest(folder, info.files))
    except UserError as error:
        yield f"tokenizer: {error}"
        return
    for name in ("sha256", "vocab_size", "special_ids", "all_special_ids", "continuation_prefix"):
        stored, actual = getattr(info, name), getattr(described, name)
        if stored != actual:
            yield f"manifest.json: the tokenizer's {name} is {stored!r}, its files say {actual!r}"


def _unknown_files(folder: Path, known: set[str]) -> Iterator[str]:
    """Files in a folder that are not in the manifest. Temporary files of interrupted writers (.*.tmp) may exist."""
    if folder.is_dir():
        for name in sorted(path.name for path in folder.iterdir()):
            if name not in known and not (name.startswith(".") and name.endswith(".tmp")):
                yield f"{name if name.isprintable() else ascii(name)}: not in the manifest"
