"""The smallest valid config, config files, and the errors of refused configs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.config_files import load_config

# What a message for a user does not say: words of parsers and of Python.
PARSER_WORDS = re.compile(
    r"Value error|Input should be|unable to parse|valid integer|valid number|Traceback|pydantic|typer|click|"
    r"\b(NoneType|str|int|dict|bool|list\[)\b|Errno|Error\b|codec|object has no"
)
LEAST = {"run": {"dir": "runs/x"}, "data": {"train": "data/x"}, "train": {"steps": 10}}


def least_config(**sections: Any) -> Config:
    """The smallest config with further keys of its sections, or with other sections."""
    values: dict[str, Any] = dict(LEAST)
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    return Config.model_validate(values)


def config_file(path: Path, values: Any) -> Path:
    """The file at `path`, of these values or of this text."""
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


def refusal(path: Path, *overrides: str) -> str:
    """The error of a refused config."""
    with pytest.raises(UserError) as caught:
        load_config(path, list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    assert not PARSER_WORDS.search(message), message
    assert "Config" not in message, "the names of our classes mean nothing to a user"
    return message
