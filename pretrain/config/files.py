"""Read and write config files, with one clear message for a config that is wrong."""

import difflib
import re
import reprlib
import textwrap
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from pretrain.config.cluster import ClusterConfig
from pretrain.config.section import Section
from pretrain.config.whole import Config


def load_config(
    path: Path | None,
    overrides: list[str] | None = None,
    profile: Path | None = None,
    options: dict[str, Any] | None = None,
) -> Config:
    """Read a config file, if there is one, and lay `section.key=value` overrides (values in YAML) over it.

    Of the section `cluster:`, a `profile` has what the file leaves open, and `options` win over all.

    Raises:
        UserError: naming the file or override, the key, and what to write instead.
    """
    values = {} if path is None else _read_yaml(path)
    if profile is not None:
        values = _merged({"cluster": _read_profile(profile)}, values)
    for override in overrides or []:
        _apply_override(values, override)
    if options:
        values = _merged(values, {"cluster": options})
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error)}" if path else _explain(error)) from None


def _read_profile(path: Path) -> dict[str, Any]:
    """The keys of `cluster:` that a file of them alone has."""
    values = _read_yaml(path)
    try:
        ClusterConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error, 'cluster')}") from None
    return values


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both mappings, with the values of `above` where they meet."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def save_config(config: Config, path: Path) -> None:
    """Write every value, defaults included, as YAML that `load_config` reads back to an equal Config."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    with atomic_writer(path) as file:
        file.write(text.encode())


class _RepeatedKeyError(yaml.YAMLError):
    """A mapping has a key twice."""

    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(f"key {reprlib.repr(key)} is given twice, in lines {first} and {second}. Remove one of them")


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: `5e-4` is a number, `24:00:00` is text, and no key of a mapping is given twice.

    YAML 1.1 reads the first as a string and the second as the number 86400. PyYAML keeps the last of two equal keys.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise _RepeatedKeyError(key.value, lines[name], line)
            lines[name] = line
        return node


_INT = "tag:yaml.org,2002:int"
_MERGE = "tag:yaml.org,2002:merge"  # `<<: *anchor`, which a mapping may have more than once
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != _INT]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _INT, re.compile(r"^[-+]?(0b[01_]+|0x[\da-fA-F_]+|0[0-7_]*|[1-9][\d_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file") from None
    except (OSError, ValueError, RecursionError) as error:  # values may be no number or date, and nested without end
        raise UserError(f"{path}: cannot be read ({error})") from None
    except _RepeatedKeyError as error:
        raise UserError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}:{where} is not valid YAML ({getattr(error, 'problem', None) or error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config is a mapping of sections such as run:, data:, train:")
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    parts = key.split(".")
    if not separator or not all(parts):
        raise UserError(f"override {override!r} is not of the form section.key=value")
    try:
        value = yaml.load(text, Loader=_Loader)
    except _RepeatedKeyError as error:
        raise UserError(f"override {override!r}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"override {override!r}: {text!r} is not valid YAML") from None
    for part in parts[:-1]:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            values[part] = inner = {}
        values = inner
    values[parts[-1]] = value


def _explain(error: ValidationError, *section: str) -> str:
    """The message for the first problem; `section` names what was validated, if not the whole config.

    Unknown keys come first: a misspelt key is often the reason why another one is missing.
    """
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    inner = tuple(part for part in problem["loc"] if not str(part).startswith("<"))  # the kinds a value may be of
    location = (*section, *inner)
    where = ".".join(_printable(part) for part in location)
    if problem["type"] == "extra_forbidden":
        return f"Unknown key {where}. {_known_keys(location)}"
    if problem["type"] == "missing":
        return f"{where} is missing; add it to the config"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "model_type":
        message = "it must be a section of keys"
    message = message.replace("Input should be", "it must be", 1)
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} is {problem['input']!r}, but {message}"


def _printable(part: int | str) -> str:
    """A part of a key for a message, quoted and shortened if it is long or has control characters."""
    text = str(part)
    return text if text.isprintable() and len(text) <= 60 else reprlib.repr(text)


def _known_keys(location: tuple[int | str, ...]) -> str:
    """A hint for an unknown key: the nearest known key, or else all keys of its section."""
    section: Any = Config
    for part in location[:-1]:
        if isinstance(part, int):  # a place in a list, whose section has been found
            continue
        section = _section_of(section.model_fields[part].annotation) if part in section.model_fields else None
        if section is None:
            return "Remove it"
    *parents, key = map(str, location)
    if names := difflib.get_close_matches(key, section.model_fields, n=1, cutoff=0.5):
        return f"Did you mean {'.'.join([*parents, names[0]])}?"
    known = textwrap.shorten(", ".join(section.model_fields), 160, placeholder=" ...")
    return f"The keys of {'.'.join(parents) or 'the config'} are {known}"


def _section_of(annotation: Any) -> type[Section] | None:
    """The section of a field that is one, may be one, or is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _section_of(part))), None)
