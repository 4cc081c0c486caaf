"""`maskwright track sync`: send the missing metrics of runs to MLflow."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.common.errors import UserError
from data_prep.storage import require_run
from launchers.arguments import JsonFlag, RunsArgument, UriOption, YesOption
from launchers.display import CommandProgress


def track_sync(
    runs: RunsArgument,
    uri: UriOption = None,
    experiment: Annotated[str | None, typer.Option(help="MLflow experiment, instead of the run's own")] = None,
    yes: YesOption = False,
    json_format: JsonFlag = False,
) -> None:
    """Send the missing metrics of runs to MLflow, for example after the server was unreachable.

    You may repeat it: nothing is sent twice. The address is --uri, else `MLFLOW_TRACKING_URI`, else the one in the run
    folder. An address from the run folder needs --yes, because the folder may come from somebody else. If a run cannot
    be sent, the others still are, and the exit code is 1.

    Examples:

        maskwright track sync runs/demo
        maskwright track sync runs --uri http://tracking:5000 --json
    """
    from pretrain.tracking import Target

    Target.of_command(uri, experiment)  # refuses an impossible address once, not for each run
    outcomes = [_sync(run, uri, experiment, yes) for folder in runs for run in _runs_in(folder)]
    if json_format:
        print(json.dumps(outcomes, indent=1))
    for outcome in outcomes:
        if error := outcome["error"]:
            typer.echo(f"error: {error}", err=True)
        elif not json_format:
            name = f"{outcome['run']}: " if len(outcomes) > 1 else ""
            points = outcome["points"]
            typer.echo(name + (f"{points:,} points sent" if points else "MLflow already has every point"))
    if any(outcome["error"] for outcome in outcomes):
        raise typer.Exit(1)


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the tracked runs below it."""
    from pretrain.reporting import runs_below
    from pretrain.run import RunFolder

    runs = [run for run in runs_below(folder) if RunFolder(run).mlflow_run.exists()]
    if not runs:
        require_run(folder)
    return runs or [folder]


def _sync(run: Path, uri: str | None, experiment: str | None, yes: bool) -> dict[str, Any]:
    """Send one run and return the outcome; `points` is the number of metric values sent."""
    from pretrain.run import RunFolder
    from pretrain.tracking import RunRecord, sync

    try:
        journal = RunFolder(run).journal
        size = journal.stat().st_size if journal.exists() else 0
        with CommandProgress() as line:
            points = sync(run, uri, experiment, yes, lambda done: line.show(done, size, str(run)))
        record = RunRecord.load(run)
    except UserError as error:
        return {"run": str(run), "points": 0, "uri": None, "run_id": None, "error": str(error)}
    where = (record.uri, record.run_id) if record else (None, None)
    return {"run": str(run), "points": points, "uri": where[0], "run_id": where[1], "error": None}
