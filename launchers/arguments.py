"""Arguments shared by several commands, and checks of input and output paths."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.common.errors import UserError
from data_prep.common.urls import is_url, require_trust, shown

if TYPE_CHECKING:
    from pretrain.config import Config

_MODEL = "run folder, Hugging Face model folder, or hub:OWNER/NAME[@REVISION]"

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file; see configs/", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="values that replace values of the file")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="run folder (run.dir of the config)")]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN", help="run folders, or folders that contain runs")]
DataSet = Annotated[str, typer.Argument(metavar="DIR", help="data set: a folder or a URL", show_default=False)]
UriOption = Annotated[str | None, typer.Option(help="MLflow address, for example http://host:5000")]
YesOption = Annotated[bool, typer.Option("--yes", help="trust the addresses in the run folder")]
JsonFlag = Annotated[bool, typer.Option("--json", help="as JSON")]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help=_MODEL)]
ModelsArgument = Annotated[list[Path] | None, typer.Argument(metavar="MODEL", help=f"one or more: {_MODEL}")]
PairsOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="minimal pairs, for example BLiMP as jsonl; or a folder of them")
]
SeqLenOption = Annotated[
    int | None, typer.Option(min=8, help="tokens per row; by default 128, or the models' limit if it is lower")
]
ExperimentOption = Annotated[
    str | None, typer.Option(help="MLflow experiment  [default: the experiment of the models' run, else maskwright]")
]
ProcessCount = Annotated[
    int | None, typer.Option(min=1, help="training processes; by default one per GPU, or one on CPU")
]
WorkerCount = Annotated[int | None, typer.Option(min=1, help="worker processes; by default one per core")]
NamedFilters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="NAME[=VALUE]", help="a filter of the plan with code from outside; you trust it"),
]
Trusted = Annotated[bool, typer.Option("--yes", help="trust the addresses and the cache folder in OUT/prep")]
MEMORY_GB = 0.5
MemoryOption = Annotated[float, typer.Option(min=0.01, help="GB of a process that finds duplicates")]
PlanArgument = Annotated[Path, typer.Argument(metavar="OUT", help="folder of a planned data set", show_default=False)]

Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="[NAME=]FILE",
        help="file, folder, quoted glob, URL, hub:DATASET or pair:SOURCE,TARGET; NAME is its source (*: its folder). "
        "Repeat it. Formats: jsonl, txt, fasta (all also .gz, .zst), parquet",
    ),
]
MoreInputs = Annotated[
    list[str] | None, typer.Argument(metavar="FILE", help="more inputs, as from a glob that the shell expands")
]
TextField = Annotated[str, typer.Option(help="field with the text; a.b means field b in a")]
TargetField = Annotated[str | None, typer.Option(help="field with the translation, for objective: prefix")]
Separator = Annotated[
    str,
    typer.Option(metavar="blank|line|file|TEXT", help="what ends a document of a .txt file; TEXT: a line of this text"),
]
CacheOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="cache folder for remote inputs; by default ~/.cache/maskwright")
]
CacheSizeOption = Annotated[float, typer.Option(min=0.001, help="size limit of the cache in gigabytes")]
AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="accept a tokenizer that cannot spell over 10% of the text")
]


def local(place: str | Path) -> Path:
    """Parse the local path of an output option.

    Raises UserError for a URL, which would create a local folder with that name.
    """
    if is_url(str(place)):  # a default value is already a path
        raise UserError(
            f"{shown(str(place))} is a URL, and output must be local. Name a local path, and copy the result later."
        )
    return Path(place)


JsonFile = Annotated[
    Path | None, typer.Option("--json", parser=local, metavar="FILE", help="write all results to a JSON file")
]


def load_trusted_config(file: Path, overrides: list[str] | None, yes: bool) -> "Config":
    """Load the config of a command that only inspects it.

    Raises:
        UserError: it cannot be used; or it lies in a run folder, which may come from somebody else, and it alone names
            an address to connect to. `yes`, or an override with the address, agrees to it.
    """
    from data_prep.storage import is_run
    from pretrain.config_files import load_config

    config = load_config(file, overrides)
    if not yes and is_run(file.parent):
        addresses = [*config.data_locations, config.checkpoint.remote, config.model.init, config.track.uri]
        given = {override.partition("=")[2].strip("\"'") for override in overrides or []}
        require_trust((address for address in map(str, filter(None, addresses)) if address not in given), file)
    return config


def refuse_unread(context: typer.Context, reader: str, *parameters: str) -> None:
    """Raise UserError for the first of these options on the command line: only the option `reader` uses them."""
    for option in given_options(context, parameters):
        raise UserError(f"{option} is used only with {reader}. Add {reader}, or remove {option}.")


def given_options(context: typer.Context, parameters: Iterable[str]) -> list[str]:
    """The options of these parameters that are on the command line."""
    sources = ((name, context.get_parameter_source(name)) for name in parameters)
    return [f"--{name.replace('_', '-')}" for name, source in sources if source and source.name == "COMMANDLINE"]


def require_inputs(
    models: Sequence[str | Path], data_sets: Iterable[str | None] = (), files: Iterable[str | None] = ()
) -> list[Path]:
    """Raise UserError for the first input that is missing or of the wrong kind, or a model that is named twice.

    None is an omitted input. It runs before PyTorch is imported, which takes seconds.

    Returns:
        The models. A model of the Hub is downloaded, and its name has its commit.
    """
    from data_prep.format import Dataset
    from data_prep.storage import fetch_from_hub, is_hub_name, require_file
    from pretrain.export import check_model

    for model in models:
        if not is_hub_name(model):
            check_model(Path(model))
    for location in filter(None, data_sets):
        Dataset(location)
    for file in filter(None, files):
        if not is_hub_name(file):
            require_file(file)
    pinned = list(map(fetch_from_hub, models))
    if twice := [model for model in pinned if pinned.count(model) > 1]:
        raise UserError(f"{twice[0]} is named twice. Name each model once.")
    return pinned
