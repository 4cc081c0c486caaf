"""`maskwright config schema`: a JSON schema of config files, for editors."""

import json


def config_schema() -> None:
    """Print a JSON schema of config files. Editors complete and check keys with it.

    Save it, and name it in the first line of a config: `# yaml-language-server: $schema=maskwright.schema.json`

    Example:

        maskwright config schema > maskwright.schema.json
    """
    from pretrain.config import json_schema

    print(json.dumps(json_schema(), indent=1))
