"""`maskwright checkpoints`: list and verify the checkpoints of a run."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep.errors import UserError
from data_prep.folder_kinds import require_run
from launchers.commands.arguments import RunArgument
from launchers.display import CommandProgress, tables

if TYPE_CHECKING:
    from pretrain.config.run import CheckpointConfig


def checkpoints(
    run: RunArgument,
    quick: Annotated[
        bool, typer.Option("--quick/--verify", help="compare file sizes only, or read every byte")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """List and verify a run's checkpoints, newest first. Exit code 1 if one is damaged.

    Examples:

        maskwright checkpoints runs/demo

        maskwright checkpoints runs/demo --quick --json
    """
    from pretrain.config import load_config
    from pretrain.run import RunFolder

    folder = RunFolder(run)
    require_run(run)
    settings = load_config(folder.config).checkpoint
    rows = _rows(folder.checkpoints, settings, quick)
    remote, problem = _remote_steps(settings)
    for row in rows:
        row["remote"] = None if remote is None else row["step"] in remote
    if as_json:
        print(json.dumps({"checkpoints": rows, "remote": remote, "remote_problem": problem}, indent=1))
    else:
        _print(run, rows, settings, remote, problem, quick)
    if any(row["problem"] for row in rows):
        sys.exit(1)


def _rows(folder: Path, settings: "CheckpointConfig", quick: bool) -> list[dict[str, Any]]:
    from pretrain import checkpoint

    found = checkpoint.committed(folder)
    kept = checkpoint.retained([step for step, _ in found], settings.keep, settings.keep_every)
    sizes = [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for _, path in found]
    rows, done = [], 0
    with CommandProgress() as line:
        for (step, path), size in zip(found, sizes, strict=True):

            def advance(count: int, name: str = path.name) -> None:
                nonlocal done
                done += count
                line.show(done, sum(sizes), f"verifying {name}")

            problem = checkpoint.verify(path, sizes_only=quick, progress=advance)
            if problem and not path.exists():  # the running training deleted it in the meantime
                continue
            saved = None if problem and "manifest.json" in problem else checkpoint.read(path).time
            row = {"step": step, "path": str(path), "time": saved, "bytes": size, "problem": problem}
            rows.append(row | {"verified": None if quick and not problem else not problem, "kept": kept.get(step)})
    return rows


def _remote_steps(settings: "CheckpointConfig") -> tuple[list[int] | None, str | None]:
    from pretrain.checkpoint.remote_copies import copies

    if not settings.remote:
        return None, None
    try:
        return copies(settings.remote), None
    except UserError as error:
        return None, str(error)


def _print(
    run: Path,
    rows: list[dict[str, Any]],
    settings: "CheckpointConfig",
    remote: list[int] | None,
    problem: str | None,
    quick: bool,
) -> None:
    if rows:
        columns = ("step", "saved", "size", "state", "kept", *(["remote"] if settings.remote else []))
        cells = [_cells(row, quick)[: len(columns)] for row in rows]
        tables.output().print(tables.table(columns, cells, texts=("saved", "state", "kept", "remote")))
        for row in rows:
            if row["problem"]:
                print(f"damaged: {row['problem']}")
    else:
        print(f"{run} has no checkpoint")
    alone = [f"{step:,}" for step in remote or [] if step not in {row["step"] for row in rows}]
    if alone:
        print(f"copied to {settings.remote} alone: {', '.join(alone)}")
    if problem:
        print(f"warning: {problem}", file=sys.stderr)


def _cells(row: dict[str, Any], quick: bool) -> list[str]:
    saved = datetime.fromtimestamp(row["time"]).isoformat(" ", "minutes") if row["time"] else "?"
    state = "damaged" if row["problem"] else "sizes are right" if quick else "verified"
    copied = {True: "yes", False: "no", None: "?"}[row["remote"]]
    size = f"{row['bytes'] / 1e6:,.1f} MB"
    return [f"{row['step']:,}", saved, size, state, row["kept"] or "until the next", copied]
