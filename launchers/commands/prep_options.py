"""The options that say what to prepare from what, shared by the commands that plan a preparation."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from data_prep.errors import UserError
from launchers.commands.arguments import local

if TYPE_CHECKING:
    from data_prep.jobs import PrepareRequest

Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="[NAME=]F...",
        help="File, folder, quoted glob, URL or hub:DATASET, of a source NAME; may be repeated. "
        "jsonl and txt (+.gz, .zst), parquet, arrow.",
    ),
]
MoreInputs = Annotated[
    list[str] | None, typer.Argument(metavar="[F...]", help="More inputs, as from a glob that the shell expands.")
]
TextField = Annotated[str, typer.Option(help="The field of a document's text; a.b is b in a.")]
Separator = Annotated[
    str,
    typer.Option(
        metavar="blank|line|file|TEXT",
        help="What ends a document of a .txt file: a blank line, any line, the file's end, or a line of this text.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where remote inputs are kept meanwhile.", show_default="~/.cache/maskwright"),
]
CacheGB = Annotated[float, typer.Option(min=0.001, help="Most gigabytes to keep there.")]


def request(
    *,
    input: Inputs,
    tokenizer: Annotated[
        str, typer.Option(metavar="T", help="Folder, tokenizer.json or hub id of a Hugging Face fast tokenizer.")
    ],
    out: Annotated[
        Path,
        typer.Option(parser=local, metavar="DIR", help="Folder of the data set; train/ and valid/ in it if split."),
    ],
    more: MoreInputs = None,
    text_field: TextField = "text",
    id_field: Annotated[str | None, typer.Option(help="Keep the documents' ids, from this field.")] = None,
    wrong_field: Annotated[
        str | None,
        typer.Option(
            help="Pairs for cloze repair: the field of the wrong text, that of --text-field being the right one."
        ),
    ] = None,
    separator: Separator = "blank",
    valid_fraction: Annotated[
        float,
        typer.Option(min=0, max=0.5, help="Share of the documents, chosen by a hash of their text, for DIR/valid."),
    ] = 0.0,
    normalize: Annotated[
        Literal["none", "nfc", "nfkc"], typer.Option(help="Unicode normal form to bring the text into.")
    ] = "none",
    min_characters: Annotated[int, typer.Option(min=0, help="Leave out shorter documents.")] = 0,
    max_characters: Annotated[int | None, typer.Option(min=1, help="Leave out longer documents.")] = None,
    drop_repetitive: Annotated[
        bool, typer.Option("--drop-repetitive", help="Leave out documents that repeat themselves (Gopher's rules).")
    ] = False,
    deduplicate: Annotated[
        Literal["none", "exact", "near"],
        typer.Option(help="Keep the first of equal (exact) or nearly equal (near) documents."),
    ] = "none",
    near_threshold: Annotated[
        float, typer.Option(min=0.1, max=1, help="Jaccard similarity that is nearly equal.")
    ] = 0.8,
    decontaminate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="F", help="Leave out documents that share text with this evaluation file; may be repeated."
        ),
    ] = None,
    decontaminate_ngram: Annotated[int, typer.Option(min=2, help="Words in a row that count as shared text.")] = 13,
    strict: Annotated[bool, typer.Option("--strict", help="Fail at the first row that cannot be read.")] = False,
    task_mb: Annotated[
        float | None, typer.Option(min=0.001, help="Megabytes of input a task; by default a few hundred tasks.")
    ] = None,
    cache: Cache = None,
    cache_gb: CacheGB = 50.0,
) -> "PrepareRequest":
    """The request of a command line. Raises UserError for inputs or a tokenizer that cannot be found."""
    from data_prep.cache import CACHE
    from data_prep.cleaning import Cleaning
    from data_prep.files import check_writable
    from data_prep.jobs import PreparationSettings, PrepareRequest, check_out
    from data_prep.sources import Options, find_inputs
    from data_prep.tokenizer import fetch

    settings = PreparationSettings(
        reading=Options(text_field, id_field, separator, wrong_field),
        cleaning=Cleaning(normalize, min_characters, max_characters, drop_repetitive),
        deduplicate=deduplicate,
        near_threshold=near_threshold,
        valid_fraction=valid_fraction,
    )
    check_out(out)  # before a tokenizer is put there
    check_writable(out, inside=True)
    inputs = find_inputs([*input, *(more or [])])
    for file in decontaminate or []:
        if str(file.resolve()) in {one.location for one in inputs}:
            raise UserError(f"{file} is both an input and an evaluation file; give each its own option.")
    return PrepareRequest(
        inputs=inputs,
        tokenizer=fetch(tokenizer, out / "prep" / "tokenizer"),
        out=out,
        settings=settings,
        evaluation=decontaminate or [],
        evaluation_ngram=decontaminate_ngram,
        task_bytes=int(task_mb * 1e6) if task_mb else None,
        strict=strict,
        cache=(cache or CACHE).absolute(),
        cache_bytes=int(cache_gb * 1e9),
    )


def with_request(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `request` and then its own; it is called with a function that gives the request."""
    ours = inspect.signature(request).parameters
    own = [one for name, one in inspect.signature(command).parameters.items() if name != "ask"]

    def run(**options: Any) -> None:
        given = {name: options.pop(name) for name in ours}
        command(lambda: request(**given), **options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*ours.values(), *own])  # type: ignore[attr-defined]
    return run
