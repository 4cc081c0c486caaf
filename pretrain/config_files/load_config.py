"""Read and write config files. An invalid config gives one clear message."""

import contextlib
import re
import reprlib
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from data_prep.common.errors import UnusableInput
from data_prep.common.files import write_file
from data_prep.common.urls import hide_secrets
from pretrain.config import ClusterConfig, Config
from pretrain.config_files.error_text import nearest, value_refusal, value_text
from pretrain.config_files.written_text import kind_at, section_in
from pretrain.config_files.yaml_text import as_yaml_text, merged, parse_yaml, read_yaml

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
    "decay_steps": "decay_fraction",
}
"""Names of other programs for keys of the config."""


def load_config(path: Path | None, overrides: list[str] | None = None, profile: Path | None = None) -> Config:
    """Read a config file, if there is one, and lay `section.key=value` overrides (values in YAML) over it.

    In the section `cluster:`, a `profile` gives the keys that the file does not set.

    Raises:
        UserError: naming the file or override, the key, and what to write instead.
    """
    values, keys = _read(path, overrides or [], profile)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        text = hide_secrets(explain_invalid(error))
        problem = text.partition(". ")[0]  # without the advice, which names other keys
        place = next((f"override {name}" for key, name in reversed(keys) if _is_about(problem, key)), path)
        raise UnusableInput(f"{place}: {text}" if place else text) from None


def config_values(path: Path, overrides: list[str]) -> dict[str, Any]:
    """The values of a config file with overrides, without the defaults and unchecked; errors as in `load_config`."""
    return _read(path, overrides, None)[0]


def _read(
    path: Path | None, overrides: list[str], profile: Path | None
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The values, and for each override the key that it changed and its own name for it."""
    values = {} if path is None else read_yaml(path, Config)
    if profile is not None:
        values = merged({"cluster": _read_profile(profile)}, values)
    return values, [(_apply_override(values, override), override.partition("=")[0]) for override in overrides]


def override_choices(key: str, text: str) -> list[Any]:
    """The values of KEY=VALUE,VALUE, each in YAML, as JSON values. Raises UserError if they cannot be read."""
    choices = parse_yaml(f"[{text}]", f"values {value_text(f'{key}={text}')}", list[kind_at(Config, key.split("."))])  # type: ignore[misc]
    jsonable: list[Any] = to_jsonable_python(choices)
    return jsonable


def _is_about(problem: str, key: str) -> bool:
    """Whether the text names a key, a key inside it, or a value that the key turned into a section."""
    parts = key.split(".")
    above = [(".".join(parts[:count]), r"\.?") for count in range(2, len(parts))]
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!{dot}\w)", problem) for name, dot in [(key, ""), *above])


def _read_profile(path: Path) -> dict[str, Any]:
    """The keys of `cluster:` that a file of them alone has."""
    values = read_yaml(path, ClusterConfig)
    try:
        ClusterConfig.model_validate(values)
    except ValidationError as error:
        raise UnusableInput(f"{path}: {explain_invalid(error, 'cluster')}") from None
    return values


def save_config(config: Config, path: Path) -> None:
    """Write `as_yaml` of a config."""
    write_file(path, as_yaml(config).encode())


def as_yaml(config: Config) -> str:
    """Every value, defaults included, as YAML that `load_config` reads back to an equal Config."""
    return as_yaml_text(config.model_dump(mode="json"), sort_keys=False)


def _apply_override(values: dict[str, Any], override: str) -> str:
    """Change the value that an override names. Returns its key, with the number of a phase."""
    with contextlib.suppress(UnicodeError):  # the bytes of an argument in a locale of ASCII
        override = override.encode(errors="surrogateescape").decode()
    key, separator, text = override.partition("=")
    parts = key.split(".")
    if not separator and override.endswith((".yaml", ".yml")):
        raise UnusableInput(f"{value_text(override)} is a second config file. Name one; change keys with KEY=VALUE.")
    if not separator or not all(parts):
        raise UnusableInput(
            f"{value_text(override)} is not KEY=VALUE. Write it without spaces, for example train.steps=100."
        )
    value = parse_yaml(text, f"override {value_text(override)}", kind_at(Config, parts))
    if isinstance(phases := values.get("phases"), list) and parts[0] == "phases" and len(parts) > 2:
        number = _phase(phases, parts[1])
        key = ".".join(["phases", str(number), *parts[2:]])
        values, parts = phases[number], parts[2:]
    for part in parts[:-1]:
        if not isinstance(values.get(part), dict):
            values[part] = {}
        values = values[part]
    values[parts[-1]] = value
    return key


def _phase(phases: list[Any], wanted: str) -> int:
    """The number of a phase, from 0, by its name or its number."""
    numbers = {str(phase.get("name")): number for number, phase in enumerate(phases) if isinstance(phase, dict)}
    if wanted.isdigit() and int(wanted) < len(phases) and isinstance(phases[int(wanted)], dict):
        return int(wanted)
    if wanted not in numbers:
        raise UnusableInput(f"There is no phase {value_text(wanted)}; the phases are {', '.join(numbers)}.")
    return numbers[wanted]


def explain_invalid(error: ValidationError, *section: str, kind: type[BaseModel] = Config) -> str:
    """The message for the first problem; `section` names what was validated, if not a whole file of this `kind`.

    Unknown keys come first: a misspelt key is often the reason why another one is missing.
    """
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    inner = tuple(part for part in problem["loc"] if not str(part).startswith("<"))  # the kinds a value may be of
    location = (*section, *inner)
    where = ".".join(_printable(part) for part in location)
    if problem["type"] == "extra_forbidden":
        return f"Unknown key {where}. {_known_keys(location, kind)}"
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


def _known_keys(location: tuple[int | str, ...], kind: type[BaseModel]) -> str:
    """A hint for an unknown key: the nearest known key, or else all keys of its section."""
    section = section_in(kind_at(kind, [*map(str, location[:-1])]))
    if section is None:
        return "Remove it"
    *parents, key = map(str, location)
    name, names = _OTHER_NAMES.get(key, key), [*section.model_fields]
    own = name if name in names else nearest(name, names, 0.75)
    if likely := own or _elsewhere(name, kind) or nearest(name, names):
        return f"Did you mean {likely if '.' in likely else '.'.join([*parents, likely])}?"
    known = textwrap.shorten(", ".join(section.model_fields), 160, placeholder=" ...")
    return f"The keys of {'.'.join(parents) or 'the config'} are {known}"


def _elsewhere(key: str, kind: type[BaseModel]) -> str | None:
    """The place of a key that stands in the wrong section."""
    fields = {name: field.annotation for name, field in kind.model_fields.items()}
    sections = {name: section_in(kind) for name, kind in fields.items()}
    places = [f"{name}.{key}" for name, section in sections.items() if section and key in section.model_fields]
    return places[0] if len(places) == 1 else None
