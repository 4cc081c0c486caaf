"""`maskwright branch`: start a run from a checkpoint of another run."""

import re
from pathlib import Path
from typing import Annotated

import typer

from data_prep.common.errors import UserError
from launchers.arguments import ConfigArgument, Overrides, ProcessCount
from launchers.commands.train import train
from pretrain.config_files import load_config, override_words
from pretrain.run import RunFolder, step_name


def branch(
    parent: Annotated[str, typer.Argument(metavar="RUN@STEP", help="run folder, and the step of a checkpoint in it")],
    config: ConfigArgument,
    overrides: Overrides = None,
    procs: ProcessCount = None,
) -> None:
    """Start a run from a checkpoint of another run: its model, optimizer and place in the data.

    The config has the whole recipe: up to the checkpoint what the other run was trained with, then another rest. To
    resume after a stop, run the same command again.

    Examples:

        maskwright branch runs/demo@1000 configs/demo.yaml run.dir=runs/longer train.steps=1200 --procs 2
        maskwright branch runs/trunk@8000 recipe.yaml run.dir=runs/web phases.stable.steps=8000 optim.lr=1e-4
    """
    found = re.fullmatch(r"(.+)@(\d+)", parent)
    if not found:
        raise UserError(f"{parent!r} is not RUN@STEP. Write for example runs/trunk@8000.")
    trunk = RunFolder(Path(found[1]))
    saved = trunk.checkpoints / step_name(int(found[2]))
    own = RunFolder(load_config(config, overrides).run.dir)
    if own.path.resolve() == trunk.path.resolve():
        raise UserError(f"run.dir is {own.path}, the run to branch from. Add run.dir=FOLDER for the new run.")
    if not saved.is_dir() and not own.checkpoints.is_dir():
        from pretrain.checkpoint import committed

        steps = ", ".join(str(step) for step, _ in sorted(committed(trunk.checkpoints)))
        raise UserError(f"{trunk.path} has no checkpoint of step {found[2]}. It has {steps or 'none'}.")
    settings: dict[str, object] = {"run.resume": saved.resolve(), "run.trust_checkpoint": True}
    if not any(override.startswith("track.parent=") for override in overrides or []):
        from pretrain.tracking import RunRecord

        if (record := RunRecord.load(trunk.path)) and record.run_id:
            settings["track.parent"] = record.run_id
    train(config, [*(overrides or []), *override_words(settings)], procs)
