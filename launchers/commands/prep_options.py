"""Options of `prep run` and `prep plan`: inputs, tokenizer, cleaning and output."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from data_prep.cleaning import Cleaning, filter_forms
from data_prep.common.errors import UserError
from launchers.commands.arguments import local, with_options

if TYPE_CHECKING:
    from data_prep.jobs import PrepareRequest

Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="[NAME=]FILE",
        help="file, folder, quoted glob, URL, hub:DATASET or pair:SOURCE,TARGET; NAME is its source. Repeat it for "
        "more. Formats: jsonl, txt, fasta (all also .gz, .zst), parquet",
    ),
]
MoreInputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="more inputs, as from a glob that the shell expands"),
]
TextField = Annotated[str, typer.Option(help="field with the text; a.b means field b in a")]
TargetField = Annotated[str | None, typer.Option(help="field with the translation, for objective: prefix")]
Separator = Annotated[
    str,
    typer.Option(
        metavar="blank|line|file|TEXT",
        help="what ends a document of a .txt file; TEXT: a line of this text",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="cache folder for remote inputs; by default ~/.cache/maskwright"),
]
CacheGB = Annotated[float, typer.Option(min=0.001, help="size limit of the cache in gigabytes")]
AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="accept a tokenizer that cannot spell over 10% of the text")
]


def request(
    *,
    input: Inputs,
    tokenizer: Annotated[
        str, typer.Option(metavar="TOKENIZER", help="folder, tokenizer.json or hub id of a fast tokenizer")
    ],
    out: Annotated[
        Path,
        typer.Option(parser=local, metavar="DIR", help="new data set; with --valid-fraction: DIR/train and DIR/valid"),
    ],
    more: MoreInputs = None,
    text_field: TextField = "text",
    id_field: Annotated[str | None, typer.Option(help="field with ids of documents to store; fasta: header")] = None,
    wrong_field: Annotated[
        str | None,
        typer.Option(help="field with the wrong text, for cloze repair"),
    ] = None,
    target_field: TargetField = None,
    max_pair_tokens: Annotated[
        int, typer.Option(min=3, help="leave out longer translation pairs; rows need 2 tokens more")
    ] = 510,
    separator: Separator = "blank",
    valid_fraction: Annotated[
        float,
        typer.Option(min=0, max=0.5, help="share of documents for DIR/valid, by a hash"),
    ] = 0.0,
    normalize: Annotated[Literal["none", "nfc", "nfkc"], typer.Option(help="Unicode normal form of the text")] = "none",
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME[=VALUE]",
            help=f"leave out documents: {', '.join(filter_forms())}. Repeat it for more.",
        ),
    ] = None,
    deduplicate: Annotated[
        Literal["none", "exact", "near"],
        typer.Option(help="keep one of equal (exact) or similar (near) documents"),
    ] = "none",
    near_threshold: Annotated[float, typer.Option(min=0.1, max=1, help="Jaccard similarity of near duplicates")] = 0.8,
    near_unit: Annotated[
        Literal["words", "characters"],
        typer.Option(help="compare 5-grams of words, or 10-grams of characters (proteins, DNA)"),
    ] = "words",
    decontaminate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="evaluation file: leave out documents that share text with it. Repeat it for more."
        ),
    ] = None,
    decontaminate_ngram: Annotated[int, typer.Option(min=2, help="consecutive words that count as shared text")] = 13,
    allow_unreadable: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0, max=1, help="share of the input's bytes that may be left out as unreadable"
        ),
    ] = 0.01,
    allow_unknown: AllowUnknown = False,
    task_mb: Annotated[
        float | None, typer.Option(min=0.001, help="input per task in megabytes; by default a few hundred tasks")
    ] = None,
    cache: Cache = None,
    cache_gb: CacheGB = 50.0,
) -> "PrepareRequest":
    """Build the request from the options. Raises UserError if an input cannot be found."""
    from data_prep import storage
    from data_prep.common.files import check_writable, refuse_file
    from data_prep.jobs import PreparationSettings, PrepareRequest
    from data_prep.sources import Options, find_inputs

    settings = PreparationSettings(
        reading=Options(text_field, id_field, separator, wrong_field, target_field),
        cleaning=Cleaning(normalize, tuple(sorted(filters or []))),
        deduplicate=deduplicate,
        near_threshold=near_threshold,
        near_unit=near_unit,
        valid_fraction=valid_fraction,
        max_pair_tokens=max_pair_tokens,
    )
    refuse_file(out)
    check_writable(out, inside=True)
    unread_files: dict[str, int] = {}
    inputs = find_inputs([*input, *(more or [])], unread_files)
    for file in decontaminate or []:
        if str(file.resolve()) in {one.location for one in inputs}:
            raise UserError(
                f"{file} is both an input and an evaluation file. Remove it from --input or --decontaminate."
            )
    return PrepareRequest(
        inputs=inputs,
        tokenizer=tokenizer,
        out=out,
        settings=settings,
        evaluation=decontaminate or [],
        evaluation_ngram=decontaminate_ngram,
        task_bytes=int(task_mb * 1e6) if task_mb else None,
        allow_unknown=allow_unknown,
        cache=storage.Cache(cache, int(cache_gb * 1e9)),
        allow_unreadable=allow_unreadable,
        unread_files=unread_files,
    )


def with_request(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `request` to a command. The command receives a function that builds the request."""
    return with_options(
        command, "ask", inspect.signature(request).parameters, lambda **given: functools.partial(request, **given)
    )
