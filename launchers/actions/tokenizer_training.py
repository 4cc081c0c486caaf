"""Train a tokenizer on text, and print what was learnt from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from data_prep.common.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from data_prep.sources import Options
    from data_prep.storage import Cache


def make_tokenizer(
    inputs: Sequence[str],
    out: Path,
    *,
    kind: Literal["wordpiece", "bpe", "characters"],
    vocab_size: int,
    lowercase: bool | None,
    strip_accents: bool,
    allow_unknown: bool,
    options: "Options",
    sample_mb: int,
    cache: "Cache",
) -> None:
    """Train a tokenizer on a sample of the inputs and save it to `out`, which must be new.

    Args:
        lowercase: as by default if None; together with strip_accents, for wordpiece only.
        allow_unknown: accept a tokenizer that cannot spell much of the text.
        options: how the inputs are read.
        sample_mb: megabytes of text to sample.

    Raises:
        UserError: for bad input, options of another kind, or an `out` that is in use.
    """
    from data_prep.common.files import check_writable, free_folder
    from data_prep.sources import find_inputs
    from data_prep.tokenizer import SAMPLE_BYTES, CorpusSample, measure_unknown, train_tokenizer

    for name, asked in (("--lowercase", lowercase), ("--strip-accents", strip_accents)):
        if asked and kind != "wordpiece":
            raise UserError(f"{name} is for --kind wordpiece, not {kind}. Leave it out.")
    check_writable(free_folder(out))
    unread: dict[str, int] = {}
    sources = find_inputs(list(inputs), unread)
    texts = CorpusSample(sources, options, sample_mb * 10**6, cache)
    if not any(text.strip() for text in texts):
        if texts.rejected:
            raise UserError(f"The input has no text: {texts.first_reason}.")
        names = f"{sources[0].location}{' and others' if sources[1:] else ''}"
        raise UserError(f"{names}: no text to train a tokenizer on. Check --input and --text-field.")
    notes: list[str] = []

    def check(tokenizer: "Tokenizer") -> None:
        sample = CorpusSample(sources, options, SAMPLE_BYTES, cache, SAMPLE_BYTES // 16)
        unknown = tokenizer.token_to_id("<unk>" if kind == "bpe" else "[UNK]")
        notes.extend(measure_unknown(tokenizer, sample, unknown).check(allow_unknown))

    size = train_tokenizer(texts, kind, vocab_size, out, lowercase is not False, strip_accents, check)
    for note in notes:
        typer.echo(note, err=True)
    if unread:
        typer.echo(f"{len(unread)} files in the input are not read, such as {next(iter(unread))}", err=True)
    if texts.rejected:
        typer.echo(f"{texts.rejected} rows were unreadable, the first being {texts.first_reason}", err=True)
    note = f" (not {vocab_size}: the text has no more)" if size < vocab_size else ""
    source = f"a sample of {texts.text_bytes / 1e6:,.0f} MB" if texts.cut else f"{texts.text_bytes / 1e6:,.1f} MB"
    typer.echo(f"{out}: {kind} tokenizer with {size} tokens{note}, learnt from {source} of text")
