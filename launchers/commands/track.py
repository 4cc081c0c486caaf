"""`maskwright track`: what MLflow knows of a run."""

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.errors import UserError
from launchers.commands.run import RunArgument
from launchers.mlflow_address import refuse_password
from launchers.progress import ProgressLine

_HELP = """Bring MLflow up to date with a run.

Examples:

    maskwright track sync runs/demo

    maskwright track register runs/demo --name demo-bert --alias champion
"""

track_app = typer.Typer(help=_HELP, no_args_is_help=True)


class Which(str, Enum):
    """Which checkpoints to log."""

    all = "all"
    best = "best"
    last = "last"


@track_app.command(name="sync")
def sync_command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders with runs in them.")
    ],
    uri: Annotated[
        str | None, typer.Option(help="Where to, instead of where the run was tracked: http://host:5000.")
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="MLflow experiment, instead of the run's own.")] = None,
    json_format: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Send to MLflow what it lacks of runs, for instance after the server was away.

    Nothing is doubled, however often it is repeated. `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` win over the
    address and the experiment the run was started with, and the options over them. A run whose data cannot be sent does
    not keep the others back; the exit code is then 1.

    Examples:

      maskwright track sync runs/demo

      maskwright track sync runs --uri http://tracking:5000 --json
    """
    refuse_password(uri)
    outcomes = [_sync(run, uri, experiment) for folder in runs for run in _runs_in(folder)]
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
    """The folder, if it is a run's, else the tracked runs in it."""
    from pretrain.overview import runs_below
    from pretrain.tracking import RECORD_NAME

    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    below = [] if (folder / RECORD_NAME).exists() else [run for run in runs_below(folder) if run != folder]
    return [run for run in below if (run / RECORD_NAME).exists()] or [folder]


def _sync(run: Path, uri: str | None, experiment: str | None) -> dict[str, Any]:
    """What came of one run; `points` is the number of metric values sent."""
    from pretrain.tracking import load_record, sync

    try:
        size = (run / "journal.jsonl").stat().st_size if (run / "journal.jsonl").exists() else 0
        with ProgressLine() as line:
            points = sync(run, uri, experiment, lambda done: line.show(done, size, str(run)))
        record = load_record(run)
    except UserError as error:
        return {"run": str(run), "points": 0, "uri": None, "run_id": None, "error": str(error)}
    where = (record.uri, record.run_id) if record else (None, None)
    return {"run": str(run), "points": points, "uri": where[0], "run_id": where[1], "error": None}


@track_app.command()
def models(
    run: RunArgument,
    which: Annotated[Which, typer.Option(help="best: each with a lower held-out loss than all before it")] = Which.all,
    step: Annotated[int | None, typer.Option(help="the checkpoint of this step alone")] = None,
) -> None:
    """Log a run's checkpoints as MLflow models, with their evaluations; those that are not logged yet.

    It may be repeated, and run beside the training.

    Examples:

        maskwright track models runs/demo

        maskwright track models runs/demo --step 400
    """
    from pretrain.logged_models import log_models
    from pretrain.tracking import sync

    sync(run)
    names = log_models(run, which.value, step)
    typer.echo(f"logged {', '.join(names)}" if names else "MLflow already has every model")


@track_app.command()
def register(
    run: RunArgument,
    name: Annotated[str, typer.Option(help="of the registered model")],
    step: Annotated[str, typer.Option(metavar="N|best|last", help="best: lowest held-out loss")] = "best",
    alias: Annotated[str | None, typer.Option(help="for this version, for instance champion")] = None,
) -> None:
    """Register a run's model with MLflow, and log it first if it is not logged yet.

    Example: `maskwright track register runs/demo --name demo-bert --alias champion`
    """
    from pretrain.registry import register as register_model
    from pretrain.tracking import sync

    sync(run)
    made = register_model(run, name, step, alias)
    loss = "" if made.loss is None else f", held-out loss {made.loss:.4f}"
    place = f"models:/{made.name}@{alias}" if alias else f"models:/{made.name}/{made.version}"
    typer.echo(f"{place} is version {made.version}: {made.model}{loss}")
