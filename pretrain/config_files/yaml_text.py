"""YAML as people mean it, read and written: `5e-4` is a number, `24:00:00` is text, and no key is given twice."""

import os
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import to_jsonable_python

from data_prep.common.errors import MissingFile, UnusableInput, working_directory
from data_prep.common.reading import MAX_CONFIG_BYTES, MAX_DEPTH, read_bytes
from pretrain.config import Config
from pretrain.config_files.error_text import nearest, yaml_problem
from pretrain.config_files.written_text import FLOAT, INT, MERGE, keep_written, kind_at, section_in

_MAX_VALUES = 100_000  # of a config


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both mappings, section by section; `above` wins where both have a value."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flattened |= flat(value, f"{prefix}{name}.")
        else:
            flattened[f"{prefix}{name}"] = value
    return flattened


def on_one_line(value: Any, sort_keys: bool = True) -> str:
    """A value as YAML on one line."""
    text = as_yaml_text(value, default_flow_style=True, width=10**6, sort_keys=sort_keys)
    return text.removesuffix("\n").removesuffix("\n...")


def override_words(values: Mapping[str, Any]) -> list[str]:
    """Values of a config, by key, as the `section.key=value` of a command line.

    A mapping for a section, which may be inside another one, changes only the keys that it names.

    Raises UserError if `values` is no mapping, or has an object that cannot be in a config.
    """
    if not isinstance(values, Mapping):  # it may hold a password
        raise UnusableInput(f'overrides must be a dictionary, as {{"train.steps": 20}}, not {type(values).__name__}')

    def plain(value: Any) -> Any:  # of a number or array of numpy, or a path
        return value.tolist() if hasattr(value, "tolist") else os.fspath(value)

    words: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and section_in(kind_at(Config, str(key).split("."))):
            words += override_words({f"{key}.{name}": inner for name, inner in value.items()})
            continue
        try:
            words.append(f"{key}={on_one_line(to_jsonable_python(value, fallback=plain))}")
        except (TypeError, ValueError):
            raise UnusableInput(f"{key} must be a number, text, list or dict, not {type(value).__name__}.") from None
    return words


def as_yaml_text(value: Any, **layout: Any) -> str:
    """A value as YAML, with quotes around text that `load_config` would read as a number."""
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, **layout)
    return text


class _RepeatedKeyError(yaml.YAMLError):
    """A mapping has a key twice."""

    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(f"key {reprlib.repr(key)} is given twice, in lines {first} and {second}. Remove one of them")


def _extent(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Count the values and the levels of a node, with aliases expanded; too many for a node that contains itself."""
    if id(node) not in known:
        known[id(node)] = (_MAX_VALUES + 1, 1)
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        extents = [_extent(part, known) for part in inner] if isinstance(inner, list) else []
        levels = 1 + max((levels for _, levels in extents), default=0)
        known[id(node)] = (1 + sum(values for values, _ in extents), levels)
    return known[id(node)]


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: `5e-4` is a number, `24:00:00` is text, and no key of a mapping is given twice.

    YAML 1.1 reads the first as a string and the second as the number 86400. PyYAML keeps the last of two equal keys.
    Each use of an alias counts: a few lines of them can expand to more values than fit in memory.
    """

    kind: Any = Any  # the annotation of the whole value

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            values, levels = _extent(node, {})
            if values > _MAX_VALUES or levels > MAX_DEPTH:
                raise ValueError(f"more than {_MAX_VALUES} values, or {MAX_DEPTH} levels")
            node = keep_written(node, self.kind)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise _RepeatedKeyError(key.value, lines[name], line)
            lines[name] = line
        return node


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes that _Loader, or another reader of YAML, would read as a number."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != INT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _reader in (_Loader, _Dumper):
    _reader.add_implicit_resolver(
        INT, re.compile(r"^[-+]?(0b[01_]+|0x[\da-fA-F_]+|0[0-7_]*|[1-9][\d_]*)$"), list("-+0123456789")
    )
    _reader.add_implicit_resolver(
        FLOAT, re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"), list("-+0123456789.")
    )


def parse_yaml(text: str, where: str, kind: Any) -> Any:
    try:
        loader = _Loader(text)
        loader.kind = kind
        return loader.get_single_data()
    except _RepeatedKeyError as error:
        raise UnusableInput(f"{where}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise UnusableInput(f"{where}:{line} is not valid YAML: {yaml_problem(error)}") from None
    except (ValueError, OverflowError, RecursionError):
        raise UnusableInput(
            f"{where}: a date or number in it cannot be read, or it is nested too deep or too large. Correct it."
        ) from None


def read_yaml(path: Path, kind: Any = Any) -> dict[str, Any]:
    """Read a YAML mapping; `kind` is its annotation, whose text keys keep values as written.

    Raises UserError if the file cannot be read or has no mapping.
    """
    values = parse_yaml(_read_text(path), str(path), kind)
    if not isinstance(values, dict):
        what = "is empty" if values is None else "has no sections"
        raise UnusableInput(f"{path} {what}. A config has sections such as run:, data: and train:; see configs/.")
    return values


def _read_text(path: Path) -> str:
    try:
        if not path.is_dir():
            return read_bytes(path, MAX_CONFIG_BYTES, "Name a YAML file").decode("utf-8")
    except MissingFile:
        others = {file.stem: file for pattern in ("*.yaml", "*.yml") for file in path.parent.glob(pattern)}
        likely = nearest(path.stem, [*others], 0.6)
        hint = f"Did you mean {others[likely]}?" if likely else "Correct the path; configs/ has examples."
        raise UnusableInput(f"No config file at {path}{working_directory(path)}. {hint}") from None
    except UnicodeDecodeError:
        raise UnusableInput(f"{path} is not text in UTF-8. Name a YAML file, or save it as UTF-8.") from None
    inside = f"{path / 'config.yaml'}" if (path / "config.yaml").is_file() else "a YAML file"
    raise UnusableInput(f"{path} is a folder, not a config file. Name {inside}.")
