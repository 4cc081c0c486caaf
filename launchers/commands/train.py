"""`maskwright train`: train on this machine."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from data_prep.errors import UserError


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file; see configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="train.steps=200 ...")] = None,
    procs: Annotated[
        int | None, typer.Option(min=1, help="training processes; by default one per GPU, or one on CPU")
    ] = None,
) -> None:
    """Train on this machine. After a stop or a crash, run the same command to resume.

    Exit code: 0 completed, 75 stopped on request (Ctrl-C, SIGTERM, `maskwright stop`), 130 ended immediately by a
    second Ctrl-C, 1 failed.

    Examples:

        maskwright train configs/bert-mini.yaml

        maskwright train configs/bert-mini.yaml train.steps=200 optim.lr=1e-3 --procs 2
    """
    from launchers.local import end_on_stop_signals

    end_on_stop_signals()
    from launchers.local import gpu_count, is_completed, train_locally
    from pretrain.config import load_config
    from pretrain.planning import check_start

    parsed = load_config(config, overrides)
    processes = procs or max(1, gpu_count())
    if 0 < gpu_count() < processes:
        raise UserError(f"--procs {processes} needs {processes} GPUs, but {gpu_count()} are visible. Lower --procs.")
    check_start(parsed, processes)  # report errors before any process starts
    if is_completed(parsed):
        return
    sys.exit(train_locally(config, parsed, overrides or [], processes))
