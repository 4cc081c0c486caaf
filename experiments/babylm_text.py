"""The choice of text for babylm.py: documents of at most ten million words, and other documents to evaluate on."""

import glob
import hashlib
from collections.abc import Iterator
from pathlib import Path

import orjson
import zstandard

from data_prep.common.errors import UserError
from data_prep.common.files import atomic_writer
from data_prep.storage import read_json_lines

FILES = {"train": "words.jsonl.zst", "valid": "held-out.jsonl.zst"}
Counts = dict[str, dict[str, int]]
"""By part of FILES: its documents and words."""


def select(pattern: str, folder: Path, words: dict[str, int], seed: int, level: int) -> None:
    """Write FILES in `folder`, chosen from files of JSON lines with a field `text`.

    The rule: documents are ordered by the SHA-256 of the seed and their text. Each whole document goes to the first
    part that has room for it. Words are what white space separates, as BabyLM counts them. Of equal documents only
    the first counts.

    Args:
        pattern: a file or a glob, also of compressed files.
        words: the most of each part. level: of zstd.

    Raises UserError if no file matches, or a document has no text.
    """
    lengths = {_key(seed, text): len(text.split()) for text in texts(pattern)}
    chosen, room = {}, dict(words)
    for key in sorted(lengths):
        if part := next((part for part, left in room.items() if lengths[key] <= left), None):
            chosen[key], room[part] = part, room[part] - lengths[key]
    lines: dict[str, list[bytes]] = {part: [] for part in FILES}
    for text in texts(pattern):  # in the order of the input: parts of one book compress well together
        if part := chosen.pop(_key(seed, text), ""):
            lines[part].append(orjson.dumps({"text": text}) + b"\n")
    for part, name in FILES.items():
        with atomic_writer(folder / name) as file:
            file.write(zstandard.ZstdCompressor(level).compress(b"".join(lines[part])))


def count(folder: Path) -> Counts:
    """Documents and words of a selection. Raises UserError if a file is missing."""
    lengths = {part: [len(text.split()) for text in texts(str(folder / name))] for part, name in FILES.items()}
    return {part: {"documents": len(of_part), "words": sum(of_part)} for part, of_part in lengths.items()}


def _key(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"babylm selection {seed}\n{text}".encode()).digest()


def texts(pattern: str) -> Iterator[str]:
    """The documents of the files, in order."""
    if not (paths := sorted(glob.glob(pattern))):
        raise UserError(f"No file matches {pattern}. Name a file of JSON lines with a field text, or a quoted glob.")
    for path in paths:
        for place, document in read_json_lines(path):
            if not isinstance(document.get("text"), str):
                raise UserError(f"{place} has no field text. Name files of JSON lines with a field text.")
            yield document["text"]
