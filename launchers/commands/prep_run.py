"""`maskwright prep run`: tokenize text into a data set, or only plan it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from data_prep.cleaning import Cleaning, filter_forms
from data_prep.common.errors import UserError
from data_prep.jobs import Workers
from launchers.arguments import (
    MEMORY_GB,
    AllowUnknown,
    CacheOption,
    CacheSizeOption,
    Inputs,
    MemoryOption,
    MoreInputs,
    Separator,
    TargetField,
    TextField,
    WorkerCount,
    local,
    refuse_unread,
)
from launchers.display import CommandProgress, print_prepared, show_totals
from pretrain.distributed import Cores

if TYPE_CHECKING:
    from data_prep.jobs import PrepareRequest


def prep_run(
    context: typer.Context,
    input: Inputs,
    tokenizer: Annotated[
        str, typer.Option(metavar="TOKENIZER", help="fast tokenizer: folder, tokenizer.json or hub:OWNER/NAME")
    ],
    out: Annotated[
        Path, typer.Option(parser=local, metavar="DIR", help="new data set; with --valid-fraction DIR/train, DIR/valid")
    ],
    more: MoreInputs = None,
    text_field: TextField = "text",
    id_field: Annotated[str | None, typer.Option(help="field with ids of documents to store; fasta: header")] = None,
    wrong_field: Annotated[str | None, typer.Option(help="field with the wrong text, for cloze repair")] = None,
    target_field: TargetField = None,
    max_pair_tokens: Annotated[int, typer.Option(min=3, help="leave out longer translation pairs")] = 510,
    separator: Separator = "blank",
    valid_fraction: Annotated[float, typer.Option(min=0, max=0.5, help="share of documents for DIR/valid")] = 0.0,
    normalize: Annotated[Literal["none", "nfc", "nfkc"], typer.Option(help="Unicode normal form of the text")] = "none",
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME[=VALUE]",
            help=f"leave out documents: {', '.join(filter_forms())}, or package.module:CLASS. Repeat it for more.",
        ),
    ] = None,
    deduplicate: Annotated[
        Literal["none", "exact", "near"], typer.Option(help="keep one of equal or similar (near) documents")
    ] = "none",
    near_threshold: Annotated[
        float | None, typer.Option(min=0.1, max=1, help="least Jaccard similarity; by default 0.7")
    ] = None,
    near_unit: Annotated[
        Literal["words", "characters"], typer.Option(help="5-grams of words, or 10-grams of characters")
    ] = "words",
    decontaminate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="evaluation file: leave out documents that share text with it. Repeat it for more."
        ),
    ] = None,
    decontaminate_ngram: Annotated[
        int, typer.Option(min=2, max=1024, help="consecutive words that count as shared text")
    ] = 13,
    allow_unreadable: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0, max=1, help="share of the input's bytes that may be left out as unreadable"
        ),
    ] = 0.01,
    allow_unknown: AllowUnknown = False,
    memory_gb: MemoryOption = MEMORY_GB,
    task_mb: Annotated[
        float | None, typer.Option(min=0.001, help="input per task in megabytes; by default a few hundred tasks")
    ] = None,
    cache: CacheOption = None,
    cache_gb: CacheSizeOption = 50.0,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="plan tasks for launch prep or prep task, and run none")
    ] = False,
    workers: WorkerCount = None,
) -> None:
    """Tokenize text into a data set. After an interruption, run the same command to resume.

    If you add inputs later, only those are processed. Unreadable rows are counted and listed in DIR/quarantine.jsonl.

    Examples:

        maskwright prep run --input configs/demo/books.jsonl.zst --tokenizer data/demo-tokenizer --out data/books
        maskwright prep run --input configs/demo/books.jsonl.zst \\
            --tokenizer data/demo-tokenizer --deduplicate near --out data/web --plan-only
    """

    def request() -> "PrepareRequest":
        from data_prep import storage
        from data_prep.common.files import check_writable
        from data_prep.jobs import PreparationSettings, PrepareRequest, planned_near_threshold
        from data_prep.sources import Options, find_inputs

        check_writable(out, inside=True)
        unread_files: dict[str, int] = {}
        inputs = find_inputs([*input, *(more or [])], unread_files)
        for file in decontaminate or []:
            if str(file.resolve()) in {source.location for source in inputs}:
                raise UserError(
                    f"{file} is both an input and an evaluation file. Remove it from --input or --decontaminate."
                )
        return PrepareRequest(
            inputs=inputs,
            tokenizer=tokenizer,
            out=out,
            settings=PreparationSettings(
                reading=Options(text_field, id_field, separator, wrong_field, target_field),
                cleaning=Cleaning(normalize, tuple(sorted(filters or []))).with_versions(),
                deduplicate=deduplicate,
                near_threshold=near_threshold or planned_near_threshold(out),
                near_unit=near_unit,
                valid_fraction=valid_fraction,
                max_pair_tokens=max_pair_tokens,
            ),
            evaluation=decontaminate or [],
            evaluation_ngram=decontaminate_ngram,
            task_bytes=int(task_mb * 1e6) if task_mb else None,
            allow_unknown=allow_unknown,
            cache=storage.Cache(cache, int(cache_gb * 1e9)),
            allow_unreadable=allow_unreadable,
            unread_files=unread_files,
            memory_bytes=int(memory_gb * 1e9),
        )

    if deduplicate == "none":
        refuse_unread(context, "--deduplicate", "memory_gb")
    if deduplicate != "near":
        refuse_unread(context, "--deduplicate near", "near_threshold", "near_unit")
    if not decontaminate:
        refuse_unread(context, "--decontaminate", "decontaminate_ngram")
    if plan_only:
        if workers:
            raise UserError("--plan-only runs no task. Remove --workers.")
        _plan(request())
        return
    with Workers(workers or Cores.usable().number, filters or [], trusted=True) as processes, CommandProgress() as line:
        from data_prep.jobs import prepare  # slow import; the worker processes start in the meantime

        prepared = prepare(request(), processes, show_totals(line))
    print_prepared(prepared, out, already_finished=not prepared.new_tasks)


def _plan(request: "PrepareRequest") -> None:
    from data_prep.jobs import plan_only

    plan, notes = plan_only(request)
    for note in notes:
        typer.echo(note, err=True)
    size = sum(task.bytes for task in plan.tasks)
    tasks = f"tasks 0 to {len(plan.tasks) - 1}" if plan.tasks else "no tasks"
    if plan.tasks and plan.settings.deduplicate != "none":
        tasks += f", ranges 0 to {plan.ranges - 1}"
    typer.echo(f"{request.out}: {tasks}, {size / 1e6:,.1f} MB of input")
