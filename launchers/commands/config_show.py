"""`maskwright config show`: all settings of a config, its difference to another, and the schema of all keys."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep.common.errors import UserError
from launchers.arguments import JsonFlag, Overrides
from launchers.display import text_console, text_table

if TYPE_CHECKING:
    from pretrain.config import Config

_NONE = object()  # a setting that the other config does not have


def config_show(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG|RUN", help="YAML file, or a run folder", show_default=False)
    ] = None,
    overrides: Overrides = None,
    diff: Annotated[
        Path | None, typer.Option(metavar="CONFIG|RUN", help="print only the settings that differ from this config")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="print a JSON schema of all keys instead, for editors")
    ] = False,
    json_format: JsonFlag = False,
) -> None:
    """Print all settings of a config or a run folder, defaults included.

    Editors complete and check keys with the schema. Save it, and name it in the first line of a config:
    `# yaml-language-server: $schema=maskwright.schema.json`

    Examples:

        maskwright config show runs/demo
        maskwright config show configs/bert-mini.yaml train.steps=500 --json
        maskwright config show runs/demo --diff configs/demo.yaml
        maskwright config show --schema > maskwright.schema.json
    """
    from pretrain.config import json_schema
    from pretrain.config_files import as_yaml

    if schema == (config is not None):
        raise UserError("Give either CONFIG or --schema. Example: maskwright config show configs/demo.yaml")
    if config is None:
        print(json.dumps(json_schema(), indent=1))
    elif diff is not None:
        _print_differences(config, overrides, diff, json_format)
    elif json_format:
        print(json.dumps(_load(config, overrides).model_dump(mode="json"), indent=1))
    else:
        print(as_yaml(_load(config, overrides)).removesuffix("\n"))


def _load(place: Path, overrides: list[str] | None = None) -> "Config":
    """The config of a file, or of a run folder. Raises UserError if it cannot be used."""
    from pretrain.config_files import load_config
    from pretrain.run import RunFolder

    return load_config(RunFolder(place).config if place.is_dir() else place, overrides)


def _print_differences(config: Path, overrides: list[str] | None, other: Path, json_format: bool) -> None:
    from pretrain.config_files import on_one_line

    before, after = _settings(_load(config, overrides)), _settings(_load(other))
    settings = {name: (before.get(name, _NONE), after.get(name, _NONE)) for name in dict.fromkeys([*before, *after])}
    changed = {name: pair for name, pair in settings.items() if pair[0] != pair[1]}
    if json_format:
        pairs = {name: [None if value is _NONE else value for value in pair] for name, pair in changed.items()}
        print(json.dumps(pairs, indent=1))
    elif changed:
        rows = [
            (name, *("" if value is _NONE else on_one_line(value) for value in pair)) for name, pair in changed.items()
        ]
        text_console().print(text_table(("setting", str(config), str(other)), rows, texts=(str(config), str(other))))
    else:
        print("All settings are equal.")


def _settings(config: "Config") -> dict[str, Any]:
    """All settings by dotted name, with names of phases for their numbers."""
    from pretrain.config_files import flat

    values = config.model_dump(mode="json")
    return flat(values | {"phases": {phase.pop("name"): phase for phase in values["phases"]}})
