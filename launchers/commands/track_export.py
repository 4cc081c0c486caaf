"""`maskwright track export`: copy the metrics of a run to TensorBoard or Weights & Biases."""

from typing import Annotated, Literal

import typer

from data_prep.storage import require_run
from launchers.arguments import RunArgument


def track_export(
    run: RunArgument,
    to: Annotated[Literal["tensorboard", "wandb"], typer.Option(help="wandb makes offline runs")] = "tensorboard",
    follow: Annotated[bool, typer.Option("--follow", help="continue until the run ends")] = False,
) -> None:
    """Copy the metrics of a run to TensorBoard (RUN/tensorboard) or Weights & Biases (RUN/wandb, offline).

    You may repeat it, also during training: no value is copied twice.

    Examples:

        maskwright track export runs/demo
        maskwright track export runs/demo --to wandb
    """
    require_run(run)
    from pretrain.tracking import copy_journal

    added = copy_journal(run, to, follow)
    print(f"{run / to}: {added:,} values added")
    if to == "wandb":
        print(f"Upload with: wandb sync {run}/wandb/offline-run-*")
