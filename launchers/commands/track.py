"""`maskwright track`: what MLflow knows of a run."""

import json
import math
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.errors import UserError
from data_prep.folders import require_run
from launchers.commands.arguments import RunArgument
from launchers.progress import ProgressLine

_HELP = """Bring MLflow up to date with a run.

Examples:

    maskwright track sync runs/demo

    maskwright track register runs/demo --name demo-bert --alias champion
"""

YesOption = Annotated[bool, typer.Option("--yes", help="Use the address that only the run folder names.")]
UriOption = Annotated[str | None, typer.Option(help="Address of MLflow, such as http://host:5000.")]

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
    uri: UriOption = None,
    experiment: Annotated[str | None, typer.Option(help="MLflow experiment, instead of the run's own.")] = None,
    yes: YesOption = False,
    json_format: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Send to MLflow the part of runs that it does not have yet, for instance after the server was away.

    You may repeat it: nothing is sent twice. The address is --uri, else `MLFLOW_TRACKING_URI`, else the one in the run
    folder. If only the run folder names it, the command needs --yes, because the folder may come from somebody else.
    If one run cannot be sent, the others still are; the exit code is then 1.

    Examples:

      maskwright track sync runs/demo

      maskwright track sync runs --uri http://tracking:5000 --json
    """
    from pretrain.tracking.target import refuse_password

    refuse_password(uri)
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
    """The folder, if it is a run's, else the tracked runs in it."""
    from pretrain.overview import runs_below
    from pretrain.tracking import RECORD_NAME

    if (folder / RECORD_NAME).exists():
        return [folder]
    below = [run for run in runs_below(folder) if (run / RECORD_NAME).exists()]
    if not below:
        require_run(folder)
    return below or [folder]


def _sync(run: Path, uri: str | None, experiment: str | None, yes: bool) -> dict[str, Any]:
    """What came of one run; `points` is the number of metric values sent."""
    from pretrain.run_folder import RunFolder
    from pretrain.tracking import load_record, sync

    try:
        journal = RunFolder(run).journal
        size = journal.stat().st_size if journal.exists() else 0
        with ProgressLine() as line:
            points = sync(run, uri, experiment, yes, lambda done: line.show(done, size, str(run)))
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
    uri: UriOption = None,
    yes: YesOption = False,
) -> None:
    """Log a run's checkpoints as MLflow models, with their evaluations; those that are not logged yet.

    It may be repeated, and run beside the training.

    Examples:

        maskwright track models runs/demo

        maskwright track models runs/demo --step 400
    """
    uri = _sent_first(run, uri, yes)
    from pretrain.logged_models import log_models  # imports torch, which takes seconds

    names = log_models(run, which.value, step, uri)
    typer.echo(f"logged {', '.join(names)}" if names else "MLflow already has every model")


@track_app.command()
def register(
    run: RunArgument,
    name: Annotated[str, typer.Option(help="of the registered model")],
    step: Annotated[str, typer.Option(metavar="N|best|last", help="best: lowest held-out loss")] = "best",
    alias: Annotated[str | None, typer.Option(help="for this version, for instance champion")] = None,
    uri: UriOption = None,
    yes: YesOption = False,
) -> None:
    """Register a run's model with MLflow, and log it first if it is not logged yet.

    Example: `maskwright track register runs/demo --name demo-bert --alias champion`
    """
    uri = _sent_first(run, uri, yes)
    from pretrain.registry import register as register_model  # imports torch, which takes seconds

    made = register_model(run, name, step, alias, uri)
    loss = f", held-out loss {made.loss:.4f}" if math.isfinite(made.loss) else ""
    place = f"models:/{made.name}@{alias}" if alias else f"models:/{made.name}/{made.version}"
    typer.echo(f"{place} is version {made.version}: {made.model}{loss}")


def _sent_first(run: Path, uri: str | None, yes: bool) -> str:
    """Send what MLflow does not have of the run, and return the address to use for the rest."""
    from pretrain.tracking import run_target, sync
    from pretrain.tracking.target import refuse_password

    require_run(run)
    refuse_password(uri)
    uri = run_target(run, uri, trust_folder=yes).uri
    sync(run, uri)
    return uri
