"""`maskwright tokenizer train`: train a WordPiece, byte-level BPE or character tokenizer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from data_prep.common.errors import UserError
from launchers.arguments import (
    AllowUnknown,
    CacheOption,
    CacheSizeOption,
    Inputs,
    MoreInputs,
    Separator,
    TargetField,
    TextField,
    local,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def tokenizer_train(
    input: Inputs,
    out: Annotated[Path, typer.Option(parser=local, metavar="DIR", help="output folder")],
    more: MoreInputs = None,
    kind: Annotated[
        Literal["wordpiece", "bpe", "characters"],
        typer.Option(help="WordPiece as in BERT, byte-level BPE as in RoBERTa, or single characters, as for proteins"),
    ] = "wordpiece",
    vocab_size: Annotated[int, typer.Option(min=1, help="number of tokens, including special tokens")] = 30_522,
    lowercase: Annotated[
        bool | None, typer.Option(help="lower-case the text, as by default (wordpiece only)", show_default=False)
    ] = None,
    strip_accents: Annotated[
        bool, typer.Option("--strip-accents", help="remove accents and vowel signs (wordpiece only)")
    ] = False,
    allow_unknown: AllowUnknown = False,
    text_field: TextField = "text",
    target_field: TargetField = None,
    separator: Separator = "blank",
    sample_mb: Annotated[
        int, typer.Option(min=1, help="megabytes of text to sample, from all inputs in proportion to their sizes")
    ] = 1000,
    cache: CacheOption = None,
    cache_gb: CacheSizeOption = 50.0,
) -> None:
    """Train a WordPiece, byte-level BPE or character tokenizer, saved for `AutoTokenizer.from_pretrained`.

    Example:

        maskwright tokenizer train --input configs/demo/books.jsonl.zst --vocab-size 4096 --out data/tokenizer
    """
    from data_prep.common.files import check_writable, free_folder
    from data_prep.sources import Options, find_inputs
    from data_prep.storage import Cache
    from data_prep.tokenizer import SAMPLE_BYTES, CorpusSample, measure_unknown, train_tokenizer

    for name, asked in (("--lowercase", lowercase), ("--strip-accents", strip_accents)):
        if asked and kind != "wordpiece":
            raise UserError(f"{name} is for --kind wordpiece, not {kind}. Leave it out.")
    check_writable(free_folder(out))
    unread: dict[str, int] = {}
    inputs, local = find_inputs([*input, *(more or [])], unread), Cache(cache, int(cache_gb * 1e9))
    options = Options(text_field, separator=separator, target_field=target_field)
    texts = CorpusSample(inputs, options, sample_mb * 10**6, local)
    if not any(text.strip() for text in texts):
        if texts.rejected:
            raise UserError(f"The input has no text: {texts.first_reason}.")
        names = f"{inputs[0].location}{' and others' if inputs[1:] else ''}"
        raise UserError(f"{names}: no text to train a tokenizer on. Check --input and --text-field.")
    notes: list[str] = []

    def check(tokenizer: "Tokenizer") -> None:
        sample = CorpusSample(inputs, options, SAMPLE_BYTES, local, SAMPLE_BYTES // 16)
        unknown = tokenizer.token_to_id("<unk>" if kind == "bpe" else "[UNK]")
        notes.extend(measure_unknown(tokenizer, sample, unknown).check(allow_unknown))

    size = train_tokenizer(texts, kind, vocab_size, out, lowercase is not False, strip_accents, check)
    for note in notes:
        typer.echo(note, err=True)
    if unread:
        typer.echo(f"{len(unread)} files or folders in the input are not read, such as {next(iter(unread))}", err=True)
    if texts.rejected:
        typer.echo(f"{texts.rejected} rows were unreadable, the first being {texts.first_reason}", err=True)
    note = f" (not {vocab_size}: the text has no more)" if size < vocab_size else ""
    source = f"a sample of {texts.text_bytes / 1e6:,.0f} MB" if texts.cut else f"{texts.text_bytes / 1e6:,.1f} MB"
    typer.echo(f"{out}: {kind} tokenizer with {size} tokens{note}, learnt from {source} of text")
