"""What an export is made from and where it goes: checked before anything slow is imported."""

from pathlib import Path

from data_prep.errors import UserError
from pretrain.checkpoint import committed
from pretrain.run import RunFolder


def chosen_checkpoint(folder: RunFolder, step: int | None) -> Path:
    """The checkpoint of a step, or the newest.

    Raises:
        UserError: if there is none.
    """
    found = dict(committed(folder.checkpoints))
    if not found:
        raise UserError(f"{folder.path}: there is no checkpoint to export; train first")
    if step is not None and step not in found:
        raise UserError(f"{folder.path}: no checkpoint of step {step}; there are {', '.join(map(str, sorted(found)))}")
    return found[max(found) if step is None else step]


def export_place(folder: RunFolder, checkpoint: Path, out: Path | None, averaged: bool) -> Path:
    """The folder to write: `out`, or RUN/exports/step-N, with -ema for averaged weights.

    Raises:
        UserError: if something is there.
    """
    place = (out or folder.exports / f"{checkpoint.name}{'-ema' if averaged else ''}").absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} exists and is not an empty folder; remove it, or choose another --out")
    return place
