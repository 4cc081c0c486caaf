"""Inputs of commands that work with models, checked before PyTorch is imported, which takes seconds."""

from collections.abc import Iterable
from pathlib import Path


def check_inputs(
    models: Iterable[str | Path], data_sets: Iterable[str | None] = (), files: Iterable[str | None] = ()
) -> None:
    """Raise UserError for the first input that is missing, or of another kind. None is an input that was not given."""
    from data_prep.reader import Dataset
    from pretrain.model_folder import check_model
    from pretrain.text_file import require_file

    for model in models:
        check_model(Path(model))
    for location in filter(None, data_sets):
        Dataset(location)
    for file in filter(None, files):
        require_file(file)
