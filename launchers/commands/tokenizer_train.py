"""`maskwright tokenizer train`: train a WordPiece, byte-level BPE or character tokenizer."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from launchers.actions import make_tokenizer
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
    from data_prep.sources import Options
    from data_prep.storage import Cache

    make_tokenizer(
        [*input, *(more or [])],
        out,
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        strip_accents=strip_accents,
        allow_unknown=allow_unknown,
        options=Options(text_field, separator=separator, target_field=target_field),
        sample_mb=sample_mb,
        cache=Cache(cache, int(cache_gb * 1e9)),
    )
