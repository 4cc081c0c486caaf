"""`maskwright prep`: turn text into a data set, at once or piece by piece."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.pool import Workers
from launchers.commands.prep_options import with_request
from launchers.progress import ProgressLine
from pretrain.threads import usable_cores

if TYPE_CHECKING:
    from data_prep.prepare import Prepared, Request
    from data_prep.progress import Progress as Totals

_HELP = """Turn raw text into verified, pre-tokenized shards.

Examples:

    maskwright prep run --input 'text/*.txt' --tokenizer data/tokenizer --out data/books --valid-fraction 0.01

    maskwright prep info data/books/train

    maskwright prep show data/books/train 0
"""

prep_app = typer.Typer(help=_HELP, no_args_is_help=True)

WorkerCount = Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of a planned data set.", show_default=False)]
Tasks = Annotated[list[int], typer.Argument(metavar="TASK...", help="Numbers of tasks, from 0.", show_default=False)]


@prep_app.command("run")
@with_request
def prep_run(ask: "Callable[[], Request]", *, workers: WorkerCount = None) -> None:
    """Tokenize text into a data set; interrupted, the same command goes on.

    Inputs that are added later are prepared alone. Rows that cannot be read are counted and listed in
    DIR/quarantine.jsonl.

    Example: `maskwright prep run --input 'text/*.jsonl.zst' --tokenizer tok --out data/books --valid-fraction 0.01`
    """
    with Workers(workers or usable_cores().number) as processes, ProgressLine() as line:
        from data_prep.prepare import prepare  # takes time, in which the processes start

        asked = ask()
        prepared = prepare(asked, processes, _shown(line))
    _tell(prepared, asked.out, already_finished=not prepared.new_tasks)


@prep_app.command("plan")
@with_request
def prep_plan(ask: "Callable[[], Request]") -> None:
    """Plan a data set without doing it: for job arrays, by `prep task` and `prep merge` or `launch prep`.

    Example: `maskwright prep plan --input 's3://bucket/text/*.parquet' --tokenizer tok --out data/web`
    """
    from data_prep.prepare import plan_only

    asked = ask()
    plan, notes = plan_only(asked)
    for note in notes:
        typer.echo(note, err=True)
    size = sum(task.bytes for task in plan.tasks)
    tasks = f"tasks 0 to {len(plan.tasks) - 1}" if plan.tasks else "no tasks"
    typer.echo(f"{asked.out}: {tasks}, {size / 1e6:,.1f} MB of input")


@prep_app.command("scan")
def prep_scan(out: Out, tasks: Tasks, workers: WorkerCount = None) -> None:
    """With --deduplicate: hash the documents of these tasks of a plan.

    Example: `maskwright prep scan data/web 0 1 2`
    """
    from data_prep.prepare import scan_tasks

    with Workers(_count(workers, tasks)) as processes, ProgressLine() as line:
        scan_tasks(out, tasks, processes, _shown(line))


@prep_app.command("resolve")
def prep_resolve(
    out: Out,
    memory_gb: Annotated[float, typer.Option(min=0.1, help="Gigabytes to work in: the more, the fewer passes.")] = 0.5,
) -> None:
    """With --deduplicate: when all tasks are scanned, find the documents that each must drop.

    Example: `maskwright prep resolve data/web`
    """
    from data_prep.prepare import resolve_tasks

    dropped = resolve_tasks(out, int(memory_gb * 1e9))
    typer.echo(f"{out}: {dropped:,} duplicates to drop")


@prep_app.command("task")
def prep_task(out: Out, tasks: Tasks, workers: WorkerCount = None) -> None:
    """Do these tasks of a plan; what is done already is only verified.

    Example: `maskwright prep task data/web 0 1 2`
    """
    from data_prep.notes import encoder_notes
    from data_prep.prepare import do_tasks

    with Workers(_count(workers, tasks)) as processes, ProgressLine() as line:
        records = do_tasks(out, tasks, processes, _shown(line))
    for note in encoder_notes(records):
        typer.echo(note, err=True)


@prep_app.command("merge")
def prep_merge(out: Out, workers: WorkerCount = None) -> None:
    """Verify all tasks of a plan and write the manifest that makes OUT a data set; names tasks that are missing.

    Example: `maskwright prep merge data/web`
    """
    from data_prep.prepare import merge_tasks

    with Workers(workers or usable_cores().number) as processes:
        _tell(merge_tasks(out, processes), out)


def _tell(prepared: "Prepared", out: Path, already_finished: bool = False) -> None:
    for note in prepared.notes:
        typer.echo(note, err=True)
    for folder, manifest in prepared.manifests.items():
        totals = manifest.totals
        typer.echo(
            f"{folder}: {'already finished, ' if already_finished else ''}{totals.documents:,} documents, "
            f"{totals.tokens:,} tokens, {totals.blocks:,} blocks, {len(manifest.shards):,} shards, "
            f"fingerprint {manifest.fingerprint[:16]}"
        )
    left_out = manifest.left_out()
    if left_out:
        where = f" (see {out / 'quarantine.jsonl'})" if left_out.get("unreadable") else ""
        counts = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        typer.echo(f"left out: {counts}{where}", err=True)


def _count(workers: int | None, tasks: list[int]) -> int:
    return min(workers or usable_cores().number, len(tasks))


def _shown(line: ProgressLine) -> Callable[[str, "Totals", int], None]:
    """Shows the totals of a stage."""

    def show(stage: str, totals: "Totals", total_bytes: int) -> None:
        seconds = line.seconds(stage)
        text = f"{stage}: {totals.text_bytes / 1e6 / seconds:.1f} MB/s of text, {totals.documents:,} documents"
        if totals.tokens:
            text += f", {totals.tokens:,} tokens ({totals.tokens / 1e6 / seconds:.1f} M/s)"
        line.show(totals.file_bytes, total_bytes, text)

    return show
