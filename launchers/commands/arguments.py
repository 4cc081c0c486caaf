"""Arguments shared by several commands, and checks of input and output paths."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from data_prep.errors import UserError
from data_prep.urls import is_url, shown

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="run folder (run.dir of the config)")]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or folders that contain runs")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="study folder (run.dir of its config)")]
DataSet = Annotated[str, typer.Argument(metavar="DIR", help="data set: a folder or a URL", show_default=False)]
UriOption = Annotated[str | None, typer.Option(help="MLflow address, for example http://host:5000")]
YesOption = Annotated[bool, typer.Option("--yes", help="trust the MLflow address in the run folder")]
WorkerCount = Annotated[int | None, typer.Option(min=1, help="worker processes; by default one per core")]
Planned = Annotated[Path, typer.Argument(metavar="OUT", help="folder of a planned data set", show_default=False)]
Tasks = Annotated[list[int], typer.Argument(metavar="TASK...", help="task numbers, from 0", show_default=False)]


def local(place: str | Path) -> Path:
    """Parse the local path of an output option.

    Raises:
        UserError: for a URL, which would create a local folder with that name.
    """
    if is_url(str(place)):  # a default value is already a path
        raise UserError(
            f"{shown(str(place))} is a URL, and output must be local. Name a local path, and copy the result later."
        )
    return Path(place)


def refuse_unread(context: typer.Context, reader: str, *parameters: str) -> None:
    """Raise UserError for the first of these options on the command line: only the option `reader` uses them."""
    for name in parameters:
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is used only with {reader}. Add {reader}, or remove {option}.")


def check_folder_of(file: Path) -> None:
    """Raise UserError if the parent folder of an output file is missing."""
    if not file.resolve().parent.is_dir():
        raise UserError(f"No folder {file.resolve().parent}. Create it, or write {file.name} to another folder.")


def check_inputs(
    models: Iterable[str | Path], data_sets: Iterable[str | None] = (), files: Iterable[str | None] = ()
) -> None:
    """Raise UserError for the first input that is missing or of the wrong kind. None stands for an omitted input.

    It runs before PyTorch is imported, which takes seconds.
    """
    from data_prep.format import Dataset
    from evaluation.text_files import require_file
    from pretrain.export import check_model

    for model in models:
        check_model(Path(model))
    for location in filter(None, data_sets):
        Dataset(location)
    for file in filter(None, files):
        require_file(file)
