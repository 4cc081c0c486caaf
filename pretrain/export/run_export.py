"""Export a run: choose the checkpoint, check it and the output folder, and write a Hugging Face folder."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import atomic_folder, free_folder, refuse_link
from data_prep.format import TokenizerInfo
from pretrain import checkpoint
from pretrain.config import Config, ObjectiveKind, View
from pretrain.export.export_record import ExportRecord
from pretrain.resuming import state_problem
from pretrain.run import RunFolder


def export_run(run: Path, step: int | None, out: Path | None, averaged: bool = False, view: View | None = None) -> Path:
    """Export a run's checkpoint.

    Args:
        step: which checkpoint; the newest by default.
        out: folder to write, which must be new or empty; RUN/exports/step-N by default, or step-N-ema, step-N-causal.
        averaged: the averaged weights of optim.ema.
        view: of the model, for a mixture of objectives with several; by default of the one that fills masks.

    Returns:
        The folder written.

    Raises UserError if there is no such checkpoint, it is damaged or has no averaged weights, no objective of the run
    has this view, or `out` is in use.
    """
    folder = RunFolder(run)
    step, path = chosen_checkpoint(folder, step)
    out = free_folder(out or folder.export_of(step, averaged, view and view.value))
    if problem := checkpoint.verify(path) or state_problem(checkpoint.read(path)):
        raise UserError(f"{path} cannot be exported: {problem}")
    saved = checkpoint.read(path)
    kind = _kind_of_view(folder, Config.model_validate(saved.state["config"]), view)
    files = [path.name for path in refuse_link(folder.tokenizer).iterdir()] if folder.tokenizer.is_dir() else []
    if TokenizerInfo.digest(folder.tokenizer, files) != saved.state["identity"]["data.train (tokenizer)"]:
        raise UserError(f"{folder.tokenizer} is not the tokenizer that the run was trained with")
    from pretrain.export.hugging_face_export import write_export  # imports torch, which takes seconds

    with new_folder(out) as temporary:
        write_export(temporary, saved, folder, averaged, kind)
        ExportRecord.write(temporary, saved)
    return out


def _kind_of_view(folder: RunFolder, config: Config, view: View | None) -> ObjectiveKind:
    """The objective that a model with this view is for."""
    if view is None:
        return config.objective_kind
    kinds = [kind for kind in config.objective_kinds if kind.view is view]
    if not kinds:
        raise UserError(
            f"{folder.path} was trained with objective {config.objective_text}, which has no {view.value} view; export "
            "it without --view"
        )
    return next((kind for kind in kinds if kind.fills_masks), kinds[0])


def chosen_checkpoint(folder: RunFolder, step: int | None) -> tuple[int, Path]:
    """The checkpoint of a step, or the newest, and its step.

    Raises UserError if the run has no checkpoint.
    """
    checkpoints = dict(checkpoint.committed(folder.checkpoints))
    if not checkpoints:
        raise UserError(f"{folder.path} has no checkpoint to export. Train first.")
    if step is not None and step not in checkpoints:
        steps = ", ".join(map(str, sorted(checkpoints)))
        raise UserError(f"{folder.path} has no checkpoint of step {step}. It has {steps}.")
    step = max(checkpoints) if step is None else step
    return step, checkpoints[step]


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """As atomic_folder. Raises UserError if another process makes the folder first."""
    try:
        with atomic_folder(out) as temporary:
            yield temporary
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise UserError(f"{out} was made by another process meanwhile") from error
        raise
