"""`maskwright checkpoints`: list and verify the checkpoints of a run."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep.common.errors import UserError
from data_prep.common.urls import require_trust
from data_prep.storage import require_run
from launchers.arguments import JsonFlag, RunArgument, YesOption
from launchers.display import CommandProgress, text_console, text_table

if TYPE_CHECKING:
    from pretrain.config import CheckpointConfig


def checkpoints(
    run: RunArgument,
    quick: Annotated[
        bool, typer.Option("--quick/--verify", help="compare file sizes only, or read every byte")
    ] = False,
    yes: YesOption = False,
    as_json: JsonFlag = False,
) -> None:
    """List and verify a run's checkpoints, newest first. Exit code 1 if one is damaged.

    Examples:

        maskwright checkpoints runs/demo
        maskwright checkpoints runs/demo --quick --json
    """
    from pretrain.config_files import load_config
    from pretrain.run import RunFolder

    folder = RunFolder(run)
    require_run(run)
    settings = load_config(folder.config).checkpoint
    rows = _rows(folder.checkpoints, settings, quick)
    remote, problem = _remote_steps(settings.remote, folder.config, yes)
    for row in rows:
        row["remote"] = None if remote is None else row["step"] in remote
    damage = [row["problem"] for row in rows if row["problem"]]
    if as_json:
        print(json.dumps({"checkpoints": rows, "remote": remote, "remote_problem": problem}, indent=1))
    else:
        columns = ("step", "saved", "size", "state", "kept", *(["remote"] if settings.remote else []))
        cells = [_cells(row, quick)[: len(columns)] for row in rows]
        text_console().print(text_table(columns, cells, texts=columns[1:]) if rows else f"{run} has no checkpoint")
        for text in damage:
            print(f"damaged: {text}")
        if only_remote := [f"{step:,}" for step in remote or [] if step not in [row["step"] for row in rows]]:
            print(f"only in {settings.remote}: {', '.join(only_remote)}")
        if problem:
            print(f"warning: {problem}", file=sys.stderr)
    if damage:
        sys.exit(1)


def _rows(folder: Path, settings: "CheckpointConfig", quick: bool) -> list[dict[str, Any]]:
    from pretrain import checkpoint

    paths = checkpoint.committed(folder)
    kept = checkpoint.retained([step for step, _ in paths], settings)
    sizes = [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for _, path in paths]
    rows, done = [], 0
    with CommandProgress() as line:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            line.show(done, sum(sizes), "verifying")

        for (step, path), size in zip(paths, sizes, strict=True):
            problem = checkpoint.verify(path, sizes_only=quick, progress=advance)
            if problem and not path.exists():  # the running training deleted it in the meantime
                continue
            saved = None if problem and "manifest.json" in problem else checkpoint.read(path).time
            row = {"step": step, "path": str(path), "time": saved, "bytes": size, "problem": problem}
            rows.append(row | {"verified": None if quick and not problem else not problem, "kept": kept.get(step)})
    return rows


def _remote_steps(remote: str | None, config: Path, yes: bool) -> tuple[list[int] | None, str | None]:
    """The steps of the remote copies, or the reason that they are not known."""
    from pretrain.checkpoint import copies

    try:
        if not yes:
            require_trust([remote], config)
        return (copies(remote) if remote else None), None
    except UserError as error:
        return None, str(error)


def _cells(row: dict[str, Any], quick: bool) -> list[str]:
    saved = datetime.fromtimestamp(row["time"]).isoformat(" ", "minutes") if row["time"] else "?"
    state = "damaged" if row["problem"] else "sizes are right" if quick else "verified"
    copied = {True: "yes", False: "no", None: "?"}[row["remote"]]
    size = f"{row['bytes'] / 1e6:,.1f} MB"
    return [f"{row['step']:,}", saved, size, state, row["kept"] or "until the next", copied]
