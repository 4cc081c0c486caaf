"""Arguments shared by several commands, and checks of input and output paths."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep.common.errors import UserError
from data_prep.common.urls import is_url, require_trust, shown

if TYPE_CHECKING:
    from pretrain.config import Config

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file; see configs/", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="values that replace values of the file"),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="run folder (run.dir of the config)")]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN", help="run folders, or folders that contain runs")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="study folder (run.dir of its config)")]
DataSet = Annotated[str, typer.Argument(metavar="DIR", help="data set: a folder or a URL", show_default=False)]
UriOption = Annotated[str | None, typer.Option(help="MLflow address, for example http://host:5000")]
YesOption = Annotated[bool, typer.Option("--yes", help="trust the addresses in the run folder")]
JsonFlag = Annotated[bool, typer.Option("--json", help="as JSON")]
SeqLenOption = Annotated[
    int | None, typer.Option(min=8, help="tokens per row; by default 128, or the models' limit if it is lower")
]
ExperimentOption = Annotated[
    str | None,
    typer.Option(help="MLflow experiment  [default: the experiment of the models' run, else maskwright]"),
]
ProcessCount = Annotated[
    int | None, typer.Option(min=1, help="training processes; by default one per GPU, or one on CPU")
]
WorkerCount = Annotated[int | None, typer.Option(min=1, help="worker processes; by default one per core")]
Planned = Annotated[Path, typer.Argument(metavar="OUT", help="folder of a planned data set", show_default=False)]
Tasks = Annotated[list[int], typer.Argument(metavar="TASK", help="task numbers, from 0", show_default=False)]


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


def with_options(
    command: Callable[..., None], name: str, options: Mapping[str, inspect.Parameter], value: Callable[..., Any]
) -> Callable[..., None]:
    """Replace a parameter of a command by options. The command receives `value` of the options that were given."""

    def run(**values: Any) -> None:
        given = {option: values.pop(option) for option in options}
        command(**values, **{name: value(**given)})

    own = inspect.signature(command).parameters.values()
    parameters = [new for one in own for new in (options.values() if one.name == name else [one])]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def read_config(place: Path, overrides: list[str] | None = None) -> "Config":
    """The config of a file, or of a run folder. Raises UserError if it cannot be used."""
    from pretrain.config import load_config, load_run_config
    from pretrain.run import RunFolder

    if place.is_dir():
        load_run_config(RunFolder(place).config)
        place = RunFolder(place).config
    return load_config(place, overrides)


def load_trusted_config(file: Path, overrides: list[str] | None, yes: bool) -> "Config":
    """Load the config of a command that only inspects it.

    Raises:
        UserError: it cannot be used; or it lies in a run folder, which may come from somebody else, and it alone names
            an address to connect to. `yes`, or an override with the address, agrees to it.
    """
    from data_prep.storage import is_run
    from pretrain.config import load_config

    config = load_config(file, overrides)
    if not yes and is_run(file.parent):
        addresses = [*config.data_locations, config.checkpoint.remote, config.model.init, config.track.uri]
        given = {override.partition("=")[2].strip("\"'") for override in overrides or []}
        require_trust((address for address in map(str, filter(None, addresses)) if address not in given), file)
    return config


def refuse_unread(context: typer.Context, reader: str, *parameters: str) -> None:
    """Raise UserError for the first of these options on the command line: only the option `reader` uses them."""
    for name in parameters:
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is used only with {reader}. Add {reader}, or remove {option}.")


def check_new_file(file: Path) -> None:
    """Raise UserError if the output file --out cannot be new: its folder is missing, or it exists."""
    if not file.resolve().parent.is_dir():
        raise UserError(f"No folder {file.resolve().parent}. Create it, or write {file.name} to another folder.")
    if file.exists():
        raise UserError(f"{file} exists; choose another --out.")


def check_inputs(
    models: Sequence[str | Path], data_sets: Iterable[str | None] = (), files: Iterable[str | None] = ()
) -> None:
    """Raise UserError for the first input that is missing or of the wrong kind, or a model that is named twice.

    None is an omitted input. It runs before PyTorch is imported, which takes seconds.
    """
    from data_prep.format import Dataset
    from data_prep.storage import require_file
    from pretrain.export import check_model

    for model in models:
        if models.count(model) > 1:
            raise UserError(f"{model} is named twice. Name each model once.")
        check_model(Path(model))
    for location in filter(None, data_sets):
        Dataset(location)
    for file in filter(None, files):
        require_file(file)
