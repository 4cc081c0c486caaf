"""Make a tokenizer and a data set of a text, and read the data set."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from data_prep.cleaning import Cleaning
from data_prep.common.errors import UserError
from data_prep.common.urls import is_url
from data_prep.format import Dataset
from data_prep.inspection import ShownDocument, document
from data_prep.jobs import PreparationSettings, PrepareRequest
from data_prep.sources import Options
from data_prep.storage import Cache
from launchers.actions import (
    PathLike,
    as_paths,
    checked,
    find_text,
    make_tokenizer,
    override_words,
    print_document,
    print_masks,
    run_preparation,
)
from launchers.arguments import local


class DataSet:
    """A data set: the folder that `prepare` wrote, one of its parts `train` and `valid`, or a URL.

    Raises:
        UserError: here, and when it is read: it is missing, not finished or damaged.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        """The folder or URL."""
        names = [name for name in ("train", "valid") if not is_url(self.path) and Path(self.path, name).is_dir()]
        self._parts = {name: Dataset(str(Path(self.path, name)) if name else self.path) for name in names or [""]}

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"DataSet({self.path!r}): {self.documents:,} documents, {self.tokens:,} tokens"

    @property
    def train(self) -> "DataSet":
        """The part to train on."""
        return DataSet(Path(self.path, "train")) if "train" in self._parts else self

    @property
    def valid(self) -> "DataSet":
        """The held-out part."""
        if "valid" not in self._parts:
            raise UserError(f"{self.path} has no held-out part. Prepare it with a valid_fraction.")
        return DataSet(Path(self.path, "valid"))

    @property
    def documents(self) -> int:
        """The number of documents, of all parts."""
        return sum(part.manifest.totals.documents for part in self._parts.values())

    @property
    def tokens(self) -> int:
        """The number of tokens, of all parts."""
        return sum(part.manifest.totals.tokens for part in self._parts.values())

    def document(self, number: int) -> ShownDocument:
        """A document of the part to train on, counted from 0: its text, tokens, ids and origin."""
        return document(next(iter(self._parts.values())), number)

    def show(self, number: int, tokens: bool = False) -> None:
        """Print a document as `maskwright prep show` does; `tokens`: with a line for each word."""
        print_document(next(iter(self._parts.values())), self.document(number), tokens)


@checked
def prepare(
    inputs: PathLike | Sequence[PathLike],
    tokenizer: PathLike,
    out: PathLike,
    *,
    valid_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.05,
    text_field: str = "text",
    separator: str = "blank",
    target_field: str | None = None,
    normalize: Literal["none", "nfc", "nfkc"] = "none",
    filters: Sequence[str] = (),
    deduplicate: Literal["none", "exact", "near"] = "none",
    decontaminate: Sequence[PathLike] = (),
    allow_unknown: bool = False,
    workers: Annotated[int, Field(ge=1)] | None = None,
) -> DataSet:
    """Tokenize text into a data set, as `maskwright prep run` does. After an interruption, the same call resumes.

    Args:
        inputs: files, folders, globs, URLs or hub:DATASET; `NAME=FILE` names a source.
        tokenizer: folder, tokenizer.json or hub:OWNER/NAME.
        out: folder of the data set.
        valid_fraction: share of the documents for the part `valid`; 0: no such part. (0 is the command's default.)
        text_field: field with the text; a.b means field b in a.
        separator: what ends a document of a .txt file: blank, line, file, or a line of this text.
        target_field: field with the translation, for objective prefix.
        normalize: Unicode normal form of the text.
        filters: documents to leave out, as "NAME" or "NAME=VALUE".
        deduplicate: keep one of equal (exact) or similar (near) documents.
        decontaminate: evaluation files; documents that share text with them are left out.
        allow_unknown: accept a tokenizer that cannot spell over 10% of the text.
        workers: processes; by default one per core.

    Raises:
        UserError: the input, the tokenizer or `out` cannot be used, or `out` was made from others.
    """
    folder, evaluation = local(os.fspath(out)), [Path(file) for file in decontaminate]

    def request() -> PrepareRequest:
        sources, unread_files = find_text(as_paths(inputs), evaluation, folder)
        settings = PreparationSettings(
            reading=Options(text_field, separator=separator, target_field=target_field),
            cleaning=Cleaning(normalize, tuple(sorted(filters))),
            deduplicate=deduplicate,
            valid_fraction=valid_fraction,
        )
        return PrepareRequest(
            sources,
            os.fspath(tokenizer),
            folder,
            settings,
            evaluation,
            allow_unknown=allow_unknown,
            unread_files=unread_files,
        )

    run_preparation(request, folder, workers)
    return DataSet(folder)


@checked
def train_tokenizer(
    inputs: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    kind: Literal["wordpiece", "bpe", "characters"] = "wordpiece",
    vocab_size: Annotated[int, Field(ge=1)] = 30_522,
    lowercase: bool | None = None,
    strip_accents: bool = False,
    text_field: str = "text",
    separator: str = "blank",
    sample_mb: Annotated[int, Field(ge=1)] = 1000,
    allow_unknown: bool = False,
) -> Path:
    """Train a tokenizer, as `maskwright tokenizer train` does.

    Args:
        inputs, text_field, separator, allow_unknown: as of `prepare`.
        out: folder for the tokenizer, which must be new.
        kind: WordPiece as in BERT, byte-level BPE as in RoBERTa, or single characters.
        vocab_size: number of tokens, including special tokens.
        lowercase: lower-case the text, as by default (wordpiece only).
        strip_accents: remove accents and vowel signs (wordpiece only).
        sample_mb: megabytes of text to sample.

    Returns:
        The folder. `transformers.AutoTokenizer.from_pretrained` loads it.

    Raises:
        UserError: the input cannot be used, or `out` exists.
    """
    make_tokenizer(
        as_paths(inputs),
        folder := local(os.fspath(out)),
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        strip_accents=strip_accents,
        allow_unknown=allow_unknown,
        options=Options(text_field, separator=separator),
        sample_mb=sample_mb,
        cache=Cache(),
    )
    return folder


@checked
def show_masks(
    text: str,
    tokenizer: PathLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    config: PathLike | None = None,
    steps: Annotated[int, Field(ge=1, le=1000)] = 4,
) -> None:
    """Print how a text is masked in several epochs, as `maskwright mask show` does.

    Args:
        text: its first row of data.seq_len tokens is shown.
        tokenizer: folder, tokenizer.json or hub:OWNER/NAME.
        overrides: values of the config by their keys, such as `{"masking.strategy": "span"}`.
        config: config file; by default all other values are defaults.
        steps: number of steps, each in a new epoch.

    Raises:
        UserError: the text, the tokenizer or the config cannot be used.
    """
    words, file = override_words(overrides), None if config is None else Path(config)
    print_masks(text, os.fspath(tokenizer), words, file, steps)
