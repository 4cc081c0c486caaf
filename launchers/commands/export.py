"""`maskwright export`: write a checkpoint as a Hugging Face model."""

from pathlib import Path
from typing import Annotated

import typer

from data_prep.common.errors import UserError
from data_prep.common.files import check_writable
from data_prep.storage import require_run
from launchers.arguments import RunArgument, local
from pretrain.checkpoint import committed
from pretrain.config import View
from pretrain.run import RunFolder


def export(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(parser=local, metavar="DIR", help="output folder; RUN/exports/step-N by default")
    ] = None,
    step: Annotated[int | None, typer.Option(help="step of the checkpoint; the newest by default")] = None,
    view: Annotated[
        View | None, typer.Option(help="of a mixture: the model for one view; by default the one that fills masks")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="export each checkpoint of the run into RUN/exports")] = False,
    ema: Annotated[bool, typer.Option("--ema", help="export the averaged weights (optim.ema)")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face model folder.

    Examples:

        maskwright export runs/demo --out models/demo-1000
        maskwright export runs/books
        maskwright export runs/demo --step 400 --out models/demo
        maskwright export runs/demo --ema
        maskwright export runs/demo --all
        maskwright export runs/demo --view bidirectional
    """
    require_run(run)
    check_writable(out or RunFolder(run).export_of(0))
    from pretrain.export import export_run, exported_folder

    if every:
        if out or step is not None:
            raise UserError("--all exports each checkpoint into RUN/exports. Remove --out and --step.")
        for number, _ in sorted(committed(RunFolder(run).checkpoints)):
            print(exported_folder(run, number, view, ema))
        return
    print(export_run(run, step, out, averaged=ema, view=view))
