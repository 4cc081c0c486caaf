"""Read and write config files. An invalid config gives one clear message."""

import contextlib
import re
import reprlib
import textwrap
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from data_prep.common.errors import MissingFile, UnusableInput, working_directory
from data_prep.common.files import write_file
from data_prep.common.reading import MAX_CONFIG_BYTES, MAX_DEPTH, read_bytes
from pretrain.config.cluster import ClusterConfig
from pretrain.config.error_text import nearest, value_refusal, value_text, yaml_problem
from pretrain.config.schema import Config
from pretrain.config.written_text import FLOAT, INT, MERGE, keep_written, kind_at

_MAX_VALUES = 100_000  # of a config
_OTHER_NAMES = {
    "learning_rate": "lr",
    "batch_size": "global_batch_size",
    "train_batch_size": "global_batch_size",
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_checkpointing": "activation_checkpointing",
    "max_steps": "steps",
    "output_dir": "dir",
    "max_seq_length": "seq_len",
    "max_length": "seq_len",
    "mlm_prob": "rate",
    "tracking_uri": "uri",
    "save_steps": "every_steps",
}
"""Names of other programs for keys of the config."""


def load_config(
    path: Path | None,
    overrides: list[str] | None = None,
    profile: Path | None = None,
) -> Config:
    """Read a config file, if there is one, and lay `section.key=value` overrides (values in YAML) over it.

    In the section `cluster:`, a `profile` gives the keys that the file does not set.

    Raises:
        UserError: naming the file or override, the key, and what to write instead.
    """
    values = {} if path is None else read_yaml(path, Config)
    if profile is not None:
        values = merged({"cluster": _read_profile(profile)}, values)
    for override in overrides or []:
        _apply_override(values, override)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UnusableInput(f"{path}: {_explain(error)}" if path else _explain(error)) from None


def _read_profile(path: Path) -> dict[str, Any]:
    """The keys of `cluster:` that a file of them alone has."""
    values = read_yaml(path, ClusterConfig)
    try:
        ClusterConfig.model_validate(values)
    except ValidationError as error:
        raise UnusableInput(f"{path}: {_explain(error, 'cluster')}") from None
    return values


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both mappings, section by section; `above` wins where both have a value."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def save_config(config: Config, path: Path) -> None:
    """Write `as_yaml` of a config."""
    write_file(path, as_yaml(config).encode())


def as_yaml(config: Config) -> str:
    """Every value, defaults included, as YAML that `load_config` reads back to an equal Config."""
    return _dumped(config.model_dump(mode="json"), sort_keys=False)


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
    text = _dumped(value, default_flow_style=True, width=10**6, sort_keys=sort_keys)
    return text.removesuffix("\n").removesuffix("\n...")


def _dumped(value: Any, **layout: Any) -> str:
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


def _parse_yaml(text: str, where: str, kind: Any) -> Any:
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
    values = _parse_yaml(_read_text(path), str(path), kind)
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


def _apply_override(values: dict[str, Any], override: str) -> None:
    with contextlib.suppress(UnicodeError):  # the bytes of an argument in a locale of ASCII
        override = override.encode(errors="surrogateescape").decode()
    key, separator, text = override.partition("=")
    parts = key.split(".")
    if not separator and override.endswith((".yaml", ".yml")):
        raise UnusableInput(f"{override!r} is a second config file. Name one, and change keys with KEY=VALUE.")
    if not separator or not all(parts):
        raise UnusableInput(
            f"{value_text(override)} is not KEY=VALUE. Write it without spaces, for example train.steps=100."
        )
    value = _parse_yaml(text, f"override {value_text(override)}", kind_at(Config, parts))
    if isinstance(phases := values.get("phases"), list) and parts[0] == "phases" and len(parts) > 2:
        values, parts = _phase(phases, parts[1]), parts[2:]
    for part in parts[:-1]:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            values[part] = inner = {}
        values = inner
    values[parts[-1]] = value


def _phase(phases: list[Any], wanted: str) -> dict[str, Any]:
    """The values of a phase by its name, or by its number from 0."""
    named = {str(phase.get("name")): phase for phase in phases if isinstance(phase, dict)}
    if wanted.isdigit() and int(wanted) < len(phases) and isinstance(phases[int(wanted)], dict):
        named[wanted] = phases[int(wanted)]
    if wanted not in named:
        raise UnusableInput(f"There is no phase {value_text(wanted)}; the phases are {', '.join(named)}.")
    phase: dict[str, Any] = named[wanted]
    return phase


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
    if problem["type"] == "missing" and isinstance(location[-1], int):
        places = [other["loc"][-1] for other in error.errors() if other["loc"][:-1] == problem["loc"][:-1]]
        least = max(int(place) for place in places) + 1
        return f"{where.rpartition('.')[0]} must be a list of {least} values, not {location[-1]}."
    if problem["type"] == "missing":
        return f"{where} is missing; add it to the config"
    if inner[-1:] == ("[key]",):
        return value_refusal(f"A key of {'.'.join(_printable(part) for part in location[:-2])}", problem)
    return value_refusal(where, problem)


def _printable(part: int | str) -> str:
    """A part of a key for a message, quoted and shortened if it is long or has control characters."""
    text = str(part)
    return text if text.isprintable() and len(text) <= 60 else reprlib.repr(text)


def _known_keys(location: tuple[int | str, ...]) -> str:
    """A hint for an unknown key: the nearest known key, or else all keys of its section."""
    section: Any = Config
    if location[0] == "phases" and len(location) > 3:  # the phase, then a key of the whole config
        location = location[2:]
    for part in location[:-1]:
        if isinstance(part, int):  # a place in a list, whose section has been found
            continue
        section = model_in(section.model_fields[part].annotation) if part in section.model_fields else None
        if section is None:
            return "Remove it"
    *parents, key = map(str, location)
    name, names = _OTHER_NAMES.get(key, key), [*section.model_fields]
    own = name if name in names else nearest(name, names, 0.75)
    if likely := own or _elsewhere(name) or nearest(name, names):
        return f"Did you mean {likely if '.' in likely else '.'.join([*parents, likely])}?"
    known = textwrap.shorten(", ".join(section.model_fields), 160, placeholder=" ...")
    return f"The keys of {'.'.join(parents) or 'the config'} are {known}"


def _elsewhere(key: str) -> str | None:
    """The place of a key that stands in the wrong section."""
    fields = {name: field.annotation for name, field in Config.model_fields.items()}
    sections = {name: model_in(kind) for name, kind in fields.items() if typing.get_origin(kind) is not list}
    places = [f"{name}.{key}" for name, section in sections.items() if section and key in section.model_fields]
    return places[0] if len(places) == 1 else None


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model of a field that is one, may be one, or is a list of them."""
    generic = typing.get_origin(annotation) is not None  # Python 3.10 takes list[X] for a type
    if not generic and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in typing.get_args(annotation) if (model := model_in(part))), None)
