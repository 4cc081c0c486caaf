"""`maskwright prep plan`: split a preparation into tasks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from launchers.commands.prep_options import with_request

if TYPE_CHECKING:
    from data_prep.jobs import PrepareRequest


@with_request
def prep_plan(ask: "Callable[[], PrepareRequest]") -> None:
    """Split a preparation into tasks, and run none of them. Use `launch prep`, or `prep task` and `prep merge`, next.

    Example:

        maskwright prep plan --input configs/demo/books.jsonl.zst \\
            --tokenizer data/demo-tokenizer --deduplicate near --out data/web
    """
    from data_prep.jobs import plan_only

    asked = ask()
    plan, notes = plan_only(asked)
    for note in notes:
        typer.echo(note, err=True)
    size = sum(task.bytes for task in plan.tasks)
    tasks = f"tasks 0 to {len(plan.tasks) - 1}" if plan.tasks else "no tasks"
    typer.echo(f"{asked.out}: {tasks}, {size / 1e6:,.1f} MB of input")
