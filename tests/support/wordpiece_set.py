"""A data set with a tokenizer of a few words, and inputs for it."""

import dataclasses
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from data_prep.format import Dataset, Manifest, ShardWriter, SourceInfo
from data_prep.tokenizer import describe_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship", "##s", "sail", "##ed", "\x1b[2J"]
SHIP = [5, 6, 7, 8, 9]  # the ship ##s sail ##ed


def source(name: str, group: str, task: int, tasks: int, documents: int, tokens: int, **more) -> SourceInfo:
    defaults = {"text_bytes": 0, "left_out": {}}
    return SourceInfo(name, group, 1, "0", task, tasks, documents, tokens, **{**defaults, **more})


def save_wordpiece(words: list[str], folder: Path) -> None:
    """Save a WordPiece tokenizer of these words, of which the first five are special, in a new folder."""
    folder.mkdir()
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tokenizer.add_special_tokens(words[:5])
    tokenizer.save(str(folder / "tokenizer.json"))


def wordpiece_set(
    folder: Path, tasks: list[list[list[int]]], sources: list[SourceInfo], prefix: str | None = "##"
) -> Dataset:
    """A data set with a tokenizer: the documents of each task; without a prefix, odd ids begin words."""
    (folder / "shards").mkdir(parents=True)
    save_wordpiece(WORDS, folder / "tokenizer")
    shards = []
    for task, documents in enumerate(tasks):
        with ShardWriter(folder / "shards", task, np.dtype("<u2"), block_tokens=12) as writer:
            for number, ids in enumerate(documents):
                words = np.array(ids) % 2 == 1 if prefix is None else None
                writer.add(np.array(ids), np.array([len(ids)]), words, [f"{task}/{number}"])
        shards += writer.shards
    info = dataclasses.replace(describe_tokenizer(folder / "tokenizer"), continuation_prefix=prefix)
    Manifest.write(folder, info, shards, sources)
    return Dataset(folder)
