"""`maskwright status`: show the state of runs."""

import sys
from typing import Annotated

import typer
from rich.table import Table

from data_prep.errors import UserError
from launchers.commands.arguments import RunsArgument
from launchers.display import tables
from launchers.slurm import QueuedJob
from launchers.watch import PIPE_WIDTH, Seen, age_cell, ago, as_json, look_at_all, number, place
from launchers.watch.run_table import job_cell, left_cell, step_cell


def status(
    run: RunsArgument,
    json_format: Annotated[
        bool, typer.Option("--json", help="print JSON: one object, or a list for several runs")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option(help="exit with the run's code: 0 completed, 75 stopped, otherwise 1")
    ] = False,
) -> None:
    """Show the state of a run and what to do next. For several runs, show a table with one line each.

    Examples:

        maskwright status runs/demo

        maskwright status runs/a runs/b

        maskwright status runs --json
    """
    from pretrain.run import EXIT_CODES

    found = look_at_all(run)
    if exit_code and len(found) > 1:
        raise UserError(f"--exit-code is for one run, and {len(found)} are given")
    if json_format:
        one = len(run) == len(found) == 1
        print(as_json(found[0].facts() if one else [seen.facts() for seen in found]))
    else:
        tables.output(PIPE_WIDTH).print(_one(found[0]) if len(found) == 1 else _several(found))
    if exit_code:
        sys.exit(EXIT_CODES[found[0].summary.status.state] if found[0].summary.status else 1)


def _one(seen: Seen) -> Table:
    facts, last = seen.summary, seen.summary.last_checkpoint
    share = "" if seen.summary.percent is None else f" ({seen.summary.percent:.1f}%)"
    rows = {
        "state": seen.state,
        "step": step_cell(seen) + share if seen.summary.status else "",
        "loss": _loss(seen),
        "held-out loss": number(facts.eval_loss, ".4f"),
        "masked accuracy": number(facts.masked_accuracy, ".1%"),
        "tokens/s": number(facts.tokens_per_second, ",.0f"),
        "time left": left_cell(seen),
        "updated": f"{age_cell(seen)} ago" if seen.summary.status else "",
        "checkpoint": "" if last is None else _checkpoint(last.step, last.age_seconds, last.problem),
        "starts": str(facts.starts or ""),
        "Slurm job": _job(facts.slurm_job, seen.jobs),
        "MLflow": facts.mlflow_page or "",
        "time limit": seen.saving.sentence if seen.saving else "",
        "reason": seen.reason,
        "next": seen.next_action,
    }
    return tables.facts(rows)


def _loss(seen: Seen) -> str:
    last, average = seen.summary.loss, seen.summary.loss_average
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
    columns = ("run", "state", "step", "%", "loss", "tokens/s", "left", "updated", "job", "next")
    rows = [
        (
            place(seen.summary.run),
            seen.state,
            step_cell(seen),
            number(seen.summary.percent, ".0f"),
            number(seen.summary.loss, ".4f"),
            number(seen.summary.tokens_per_second, ",.0f"),
            left_cell(seen),
            age_cell(seen),
            job_cell(seen.jobs),
            seen.summary.problem or seen.next_action,
        )
        for seen in found
    ]
    return tables.table(columns, rows, texts=("state", "job", "next"))
