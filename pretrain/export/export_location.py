"""What an export is made from and where it goes: checked before anything slow is imported."""

from pathlib import Path

from data_prep.errors import UserError
from pretrain.checkpoint import committed
from pretrain.run import RunFolder


def chosen_checkpoint(folder: RunFolder, step: int | None) -> Path:
    """The checkpoint of a step, or the newest.

    Raises:
        UserError: if the run has no checkpoint.
    """
    checkpoints = dict(committed(folder.checkpoints))
    if not checkpoints:
        raise UserError(f"{folder.path} has no checkpoint to export. Train first.")
    if step is not None and step not in checkpoints:
        steps = ", ".join(map(str, sorted(checkpoints)))
        raise UserError(f"{folder.path} has no checkpoint of step {step}. It has {steps}.")
    return checkpoints[max(checkpoints) if step is None else step]


def export_folder(folder: RunFolder, checkpoint: Path, out: Path | None, averaged: bool) -> Path:
    """The folder to write: `out`, or RUN/exports/step-N, with -ema for averaged weights.

    Raises:
        UserError: if something is there.
    """
    place = (out or folder.exports / f"{checkpoint.name}{'-ema' if averaged else ''}").absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} exists and is not an empty folder. Remove it, or choose another --out.")
    return place
