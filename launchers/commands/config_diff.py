"""`maskwright config diff`: the different settings of two configs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launchers.commands.arguments import JsonFlag, read_config
from launchers.display import text_console, text_table

if TYPE_CHECKING:
    from pretrain.config import Config

_NONE = object()  # a setting that the other config does not have
Place = Annotated[Path, typer.Argument(metavar="CONFIG|RUN", help="YAML file, or a run folder", show_default=False)]


def config_diff(first: Place, second: Place, json_format: JsonFlag = False) -> None:
    """Print the different settings of two configs or runs, defaults included.

    Examples:

        maskwright config diff runs/demo configs/demo.yaml
        maskwright config diff configs/bert-base.yaml configs/bert-large-24h.yaml --json
    """
    from pretrain.config import on_one_line

    before, after = (settings(read_config(place)) for place in (first, second))
    names = [*before, *(name for name in after if name not in before)]
    changed = {
        name: (before.get(name, _NONE), after.get(name, _NONE))
        for name in names
        if before.get(name, _NONE) != after.get(name, _NONE)
    }
    if json_format:
        pairs = {name: [None if value is _NONE else value for value in pair] for name, pair in changed.items()}
        print(json.dumps(pairs, indent=1))
    elif changed:
        rows = [
            (name, *("" if value is _NONE else on_one_line(value) for value in pair)) for name, pair in changed.items()
        ]
        text_console().print(text_table(("setting", str(first), str(second)), rows, texts=(str(first), str(second))))
    else:
        print("All settings are equal.")


def settings(config: "Config") -> dict[str, Any]:
    """All settings by dotted name, with names of phases for their numbers."""
    from pretrain.config import flat

    values = config.model_dump(mode="json")
    return flat(values | {"phases": {phase.pop("name"): phase for phase in values["phases"]}})
