"""`maskwright prep`: turn text into a data set, at once or piece by piece."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from data_prep.pool import Workers
from launchers.commands.prep_options import with_request

if TYPE_CHECKING:
    from data_prep.prepare import Prepared, Request
    from data_prep.progress import Progress as Totals

prep_app = typer.Typer(help="Turn raw text into verified, pre-tokenized shards.", no_args_is_help=True)

PLAIN_SECONDS = 10  # between progress lines where there is no terminal

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
    with Workers(workers or _cores()) as processes, ProgressLine() as show:
        from data_prep.prepare import prepare  # takes time, in which the processes start

        asked = ask()
        prepared = prepare(asked, processes, show)
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

    with Workers(_count(workers, tasks)) as processes, ProgressLine() as show:
        scan_tasks(out, tasks, processes, show)


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
    from data_prep.prepare import do_tasks, notes_of

    with Workers(_count(workers, tasks)) as processes, ProgressLine() as show:
        records = do_tasks(out, tasks, processes, show)
    for note in notes_of(records):
        typer.echo(note, err=True)


@prep_app.command("merge")
def prep_merge(out: Out, workers: WorkerCount = None) -> None:
    """Verify all tasks of a plan and write the manifest that makes OUT a data set; names tasks that are missing.

    Example: `maskwright prep merge data/web`
    """
    from data_prep.prepare import merge_tasks

    with Workers(workers or _cores()) as processes:
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
    return min(workers or _cores(), len(tasks))


def _cores() -> int:
    """Cores that this process may use: what a scheduler grants, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProgressLine:
    """Shows the totals of a stage: a live line on a terminal, else a plain line now and then."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (BarColumn(), TextColumn("{task.percentage:3.0f}% {task.description}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = self._bar.add_task("", total=None) if self._bar else None
        self._stage = ""
        self._begin = self._printed = time.monotonic()

    def __enter__(self) -> "ProgressLine":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, stage: str, totals: "Totals", total_bytes: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._begin = stage, now
        seconds = max(now - self._begin, 1e-9)
        line = f"{stage}: {totals.text_bytes / 1e6 / seconds:.1f} MB/s of text, {totals.documents:,} documents"
        if totals.tokens:
            line += f", {totals.tokens:,} tokens ({totals.tokens / 1e6 / seconds:.1f} M/s)"
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=totals.file_bytes, total=total_bytes, description=escape(line))
        elif now - self._printed >= PLAIN_SECONDS:
            self._printed = now
            done = totals.file_bytes / max(total_bytes, 1)
            left = f", {seconds * (1 - done) / done:,.0f} s left" if done else ""
            typer.echo(f"{done:4.0%} {line}{left}", err=True)
