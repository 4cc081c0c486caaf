"""`maskwright runs tree`: show which run was branched from which."""

import json
from pathlib import Path

from launchers.commands.arguments import JsonFlag, RunsArgument
from launchers.display import text_console, text_table
from launchers.watch import family, look_at_all


def runs_tree(run: RunsArgument, json_format: JsonFlag = False) -> None:
    """Show runs with the checkpoints that they were branched from, and their losses.

    Examples:

        maskwright runs tree runs
        maskwright runs tree runs/trunk runs/trunk-decay --json
    """
    found = family(look_at_all([Path(path) for path in run]))
    if json_format:
        print(json.dumps([one.facts() for one in found], indent=1))
        return
    rows = []
    for one in found:
        summary = one.seen.summary
        at = "" if one.step is None else f"{one.step:,}"
        losses = ("" if loss is None else f"{loss:.4f}" for loss in (summary.loss, summary.eval_loss))
        step = f"{summary.status.step:,}" if summary.status else ""
        rows.append((f"{'  ' * one.depth}{summary.run}", at, one.seen.state, step, *losses))
    columns = ("run", "branched at", "state", "step", "loss", "held-out loss")
    text_console().print(text_table(columns, rows, texts=("state",)))
