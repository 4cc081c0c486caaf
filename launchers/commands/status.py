"""`maskwright status` and `stop`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from data_prep.errors import UserError
from launchers.runs import (
    Seen,
    age_cell,
    ago,
    as_json,
    job_cell,
    left_cell,
    look,
    number,
    place,
    step_cell,
    wide_console,
)
from launchers.slurm.client import QueuedJob, own_jobs
from launchers.stop import stop_run

_SHORT_JOURNAL = 50_000_000  # bytes, a second's reading

RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or folders of run folders")]


def status(
    run: RunsArgument,
    json_format: Annotated[bool, typer.Option("--json", help="as JSON: one object, or a list for several")] = False,
    exit_code: Annotated[bool, typer.Option(help="exit with the run's code: 0 completed, 75 stopped, 1 else")] = False,
) -> None:
    """Show what a run is doing, and what to do next; of several runs, a line each.

    Examples:

        maskwright status runs/demo

        maskwright status runs/a runs/b

        maskwright status runs --json
    """
    from pretrain.run_folder import EXIT_CODES

    runs = _runs(run)
    if exit_code and len(runs) > 1:
        raise UserError(f"--exit-code is for one run, and {len(runs)} are given")
    jobs, _ = own_jobs() if _may_be_queued(runs) else ([], None)
    found = [look(path, jobs) for path in runs]
    if len(found) == 1 and found[0].problem and not found[0].jobs:
        raise UserError(found[0].problem)
    if json_format:
        one = len(run) == len(found) == 1
        print(as_json(found[0].facts() | _goodput(run[0]) if one else [seen.facts() for seen in found]))
    else:
        _print(found)
    if exit_code:
        sys.exit(EXIT_CODES[found[0].status.state] if found[0].status else 1)


def stop(run: RunsArgument) -> None:
    """Ask runs to write a checkpoint and stop (exit code 75); a job that waits in Slurm's queue is taken out of it.

    Examples:

        maskwright stop runs/demo

        maskwright stop runs/a runs/b
    """
    runs = _runs(run)
    jobs, _ = own_jobs() if _may_be_queued(runs) else ([], None)
    found = [look(path, jobs) for path in runs]
    if len(found) == 1 and found[0].problem and not found[0].jobs:
        raise UserError(found[0].problem)
    for seen in found:
        print(stop_run(seen))


def _runs(given: list[Path]) -> list[Path]:
    """The run folders that are meant, each once; a folder that is no run, if it holds some, stands for them."""
    from data_prep.folders import is_run
    from pretrain.overview import runs_below

    found = [run for path in given for run in ([path] if is_run(path) else runs_below(path) or [path])]
    return list(dict.fromkeys(found))


def _may_be_queued(runs: list[Path]) -> bool:
    """Only runs that were submitted have a job; others need no question to Slurm."""
    return any((run / "slurm").is_dir() for run in runs)


def _print(found: list[Seen]) -> None:
    wide_console().print(_one(found[0]) if len(found) == 1 else _several(found))


def _goodput(run: Path) -> dict[str, float | None]:
    from pretrain.report_page.collect import goodput_of
    from pretrain.run_folder import RunFolder

    return {"goodput": goodput_of(RunFolder(run), _SHORT_JOURNAL)}


def _one(seen: Seen) -> Table:
    facts, last = seen.overview, seen.overview.last_checkpoint
    table = Table(show_header=False, box=None)
    share = "" if seen.percent is None else f" ({seen.percent:.1f}%)"
    rows = {
        "state": seen.state,
        "step": step_cell(seen) + share if seen.status else "",
        "loss": _loss(seen),
        "held-out loss": number(facts.eval_loss, ".4f"),
        "masked accuracy": number(facts.masked_accuracy, ".1%"),
        "tokens/s": number(facts.tokens_per_second, ",.0f"),
        "goodput": number(_goodput(seen.run)["goodput"], ".1%"),
        "time left": left_cell(seen),
        "updated": f"{age_cell(seen)} ago" if seen.status else "",
        "checkpoint": "" if last is None else _checkpoint(last.step, last.age_seconds, last.problem),
        "starts": str(facts.starts or ""),
        "skipped steps": str(facts.skipped_steps or ""),
        "Slurm job": _job(facts.slurm_job, seen.jobs),
        "MLflow": facts.mlflow_page or "",
        "time limit": seen.saving.sentence if seen.saving else "",
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, escape(value))
    table.add_row("reason", escape(seen.reason))
    table.add_row("next", escape(seen.next_action))
    return table


def _loss(seen: Seen) -> str:
    last, average = seen.overview.loss, seen.overview.loss_average
    if last is None:
        return ""
    return f"{last:.4f}" + (f" (last steps on average {average:.4f})" if average is not None else "")


def _checkpoint(step: int, age: float | None, problem: str | None) -> str:
    if problem:
        return f"step {step:,}, damaged: {problem}"
    return f"step {step:,}, {ago(age or 0)} ago; sizes are right, `maskwright checkpoints` reads every byte"


def _job(last: str | None, jobs: list[QueuedJob]) -> str:
    if jobs:
        return job_cell(jobs)
    return f"{last}, no longer in the queue of this user" if last else ""


def _several(found: list[Seen]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "state", "step", "%", "loss", "tokens/s", "left", "updated", "job", "next"):
        right = name in ("step", "%", "loss", "tokens/s", "left", "updated")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for seen in found:
        cells = [place(seen.run), seen.state, step_cell(seen), number(seen.percent, ".0f")]
        cells += [number(seen.overview.loss, ".4f"), number(seen.overview.tokens_per_second, ",.0f")]
        cells += [left_cell(seen), age_cell(seen), job_cell(seen.jobs), seen.problem or seen.next_action]
        table.add_row(*map(escape, cells))
    return table
