"""Config files: one YAML file and `section.key=value` overrides become a `Config`, and a Config becomes a file.

`load_config` reads a config, and `save_config` and `as_yaml` write one. `read_yaml` reads any YAML mapping. `flat`,
`merged` and `on_one_line` rearrange and show its values, and `override_words` writes them as overrides. `config_values`
gives values that are not checked yet, and `override_choices` several values of a key. `value_refusal` and `percent` say
in plain words why a value is refused, `explain_invalid` why a file is.
"""

from pretrain.config_files.error_text import percent, value_refusal
from pretrain.config_files.load_config import (
    as_yaml,
    config_values,
    explain_invalid,
    load_config,
    override_choices,
    save_config,
)
from pretrain.config_files.yaml_text import as_yaml_text, flat, merged, on_one_line, override_words, read_yaml
