"""Arguments that several commands have, and the checks of their inputs and outputs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from data_prep.errors import UserError
from data_prep.urls import is_url, shown

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder (run.dir of the config)")]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or folders of run folders")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="a study's folder (run.dir of its config)")]
DataSet = Annotated[str, typer.Argument(metavar="DIR", help="A data set: a folder or a URL.", show_default=False)]
UriOption = Annotated[str | None, typer.Option(help="Address of MLflow, such as http://host:5000.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Use the address that only the run folder names.")]
WorkerCount = Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")]
Planned = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of a planned data set.", show_default=False)]
Tasks = Annotated[list[int], typer.Argument(metavar="TASK...", help="Numbers of tasks, from 0.", show_default=False)]


def local(place: str | Path) -> Path:
    """The path of an option that says where to write.

    Raises:
        UserError: for a URL, which would become a folder of a strange name here.
    """
    if is_url(str(place)):  # a default is a path already
        raise UserError(
            f"{shown(str(place))} is a URL; write to a local path, and copy what is there when it is finished"
        )
    return Path(place)


def check_folder_of(file: Path) -> None:
    """Raise UserError if the folder that a file is to be written to is missing."""
    if not file.resolve().parent.is_dir():
        raise UserError(f"There is no folder {file.resolve().parent} to write {file.name} to.")


def check_inputs(
    models: Iterable[str | Path], data_sets: Iterable[str | None] = (), files: Iterable[str | None] = ()
) -> None:
    """Raise UserError for the first input that is missing, or of another kind. None is an input that was not given.

    It runs before PyTorch is imported, which takes seconds.
    """
    from data_prep.format import Dataset
    from evaluation.text_files import require_file
    from pretrain.export.resolve_model import check_model

    for model in models:
        check_model(Path(model))
    for location in filter(None, data_sets):
        Dataset(location)
    for file in filter(None, files):
        require_file(file)
