"""`maskwright config show`: all settings of a config."""

import json

from launchers.commands.arguments import ConfigArgument, JsonFlag, Overrides, read_config


def config_show(config: ConfigArgument, overrides: Overrides = None, json_format: JsonFlag = False) -> None:
    """Print all settings of a config or a run folder, defaults included.

    Examples:

        maskwright config show runs/demo
        maskwright config show configs/bert-mini.yaml train.steps=500 --json
    """
    from pretrain.config import as_yaml

    parsed = read_config(config, overrides)
    print(json.dumps(parsed.model_dump(mode="json"), indent=1) if json_format else as_yaml(parsed).removesuffix("\n"))
