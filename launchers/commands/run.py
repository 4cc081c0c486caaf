"""`maskwright train` and `export`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from data_prep.errors import UserError
from data_prep.files import check_writable
from data_prep.folders import require_run
from launchers.commands.places import local

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder (run.dir of the config)")]


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file; see configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="train.steps=200 ...")] = None,
    procs: Annotated[int | None, typer.Option(min=1, help="processes; by default one a GPU, or one")] = None,
) -> None:
    """Train on this machine; run it again to go on after a stop or a crash.

    Exit code: 0 completed, 75 stopped on request (Ctrl-C, SIGTERM, `maskwright stop`), 130 ended at once by a second
    Ctrl-C, 1 failed.

    Examples:

        maskwright train configs/bert-mini.yaml

        maskwright train configs/bert-mini.yaml train.steps=200 optim.lr=1e-3 --procs 2
    """
    from launchers.stopping import end_on_stop_signals

    end_on_stop_signals()
    from launchers.local import gpu_count, is_completed, train_locally
    from pretrain.config import load_config
    from pretrain.preflight import check_start

    parsed = load_config(config, overrides)
    processes = procs or max(1, gpu_count())
    if 0 < gpu_count() < processes:
        raise UserError(f"--procs {processes} needs as many GPUs, and {gpu_count()} are visible; lower --procs")
    check_start(parsed, processes)  # what is wrong is best said before any process starts
    if is_completed(parsed):
        return
    sys.exit(train_locally(config, parsed, overrides or [], processes))


def export(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(parser=local, metavar="DIR", help="folder to write; RUN/exports/step-N by default")
    ] = None,
    step: Annotated[int | None, typer.Option(help="the newest checkpoint by default")] = None,
    ema: Annotated[bool, typer.Option("--ema", help="the averaged weights of optim.ema")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face model folder.

    Examples:

        maskwright export runs/demo

        maskwright export runs/demo --step 400 --out models/demo

        maskwright export runs/demo --ema
    """
    require_run(run)
    check_writable(out or run / "exports" / "step")
    from pretrain.export_place import chosen_checkpoint, export_place
    from pretrain.run_folder import RunFolder

    folder = RunFolder(run)
    export_place(folder, chosen_checkpoint(folder, step), out, ema)
    from pretrain.export import export_run  # imports torch, which takes seconds

    print(export_run(run, step, out, averaged=ema))
