"""mkdocs hook: pages with all commands (from typer) and all configuration keys (from the pydantic models)."""

import inspect
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from data_prep.cleaning import filter_forms, known_filters
from launchers.app import app
from pretrain.config import Config

_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_NAMES = {"string": "text", "boolean": "true or false", "array": "list", "object": "mapping"}


class Key(NamedTuple):
    """A key of the configuration. default: as JSON, or "required"."""

    name: str
    type: str
    default: str
    description: str


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add reference/commands.md and reference/configuration.md."""
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    files.append(File.generated(config, "reference/configuration.md", content=configuration_page()))
    return files


def commands_page() -> str:
    """The help of every command, as Markdown."""
    command = typer.main.get_command(app)
    page = get_docs_for_click(obj=command, ctx=typer.Context(command), name="maskwright", title="Commands")
    return page.replace("\b\n", "") + filters_table()  # without marks for the help in a terminal


def filters_table() -> str:
    """The filters of text, as Markdown."""
    text = "\n## Filters of `maskwright prep run`\n\n| option | leaves out | counted as |\n|---|---|---|\n"
    for form, kind in zip(filter_forms(), known_filters().values(), strict=True):
        text += f"| `--filter {form}` | {inspect.cleandoc(kind.__doc__ or '')} | {', '.join(kind.reasons)} |\n"
    return text


def configuration_page() -> str:
    """A table of keys for each section of the configuration, as Markdown."""
    text = (
        "# All configuration keys\n\nThis page is made from the code. [Configuration](../configuration.md) says more "
    )
    text += "about most keys. `[]` means each item of a list, `*` for each name of a mapping.\n"
    section = ""
    for key in configuration_keys():
        if (start := key.name.split(".")[0].removesuffix("[]")) != section:
            section = start
            text += f"\n## {section}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
        cells = (f"`{key.name}`", key.type, f"`{key.default}`", key.description)
        text += f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
    return text


def configuration_keys() -> Iterator[Key]:
    """All keys of the configuration in the order of the models; keys of inner sections come after their section."""
    schema = Config.model_json_schema()
    yield from _keys_of(schema, schema["$defs"], "")


def _keys_of(schema: dict[str, Any], definitions: dict[str, Any], prefix: str, defaults: Any = None) -> Iterator[Key]:
    """The keys of a section. defaults: its values where the section that holds it has a default for it."""
    given = defaults if isinstance(defaults, dict) else {}
    for name, value in schema["properties"].items():
        full, inner = prefix + name, list(_inner_sections(value, definitions))
        if not ("$ref" in value and inner):  # a section that is always there has no row
            empty = {"array": [], "object": {}}.get(value.get("type", ""))  # what a default_factory makes
            default = given.get(name, value.get("default", empty))
            required = name in schema.get("required", ()) and name not in given
            if required or default == 0 < value.get("minimum", 0):  # 0: from another key
                printed = "required"
            else:
                printed = json.dumps(default)
            yield Key(full, _type(value, definitions), printed, value.get("description", ""))
        for end, section in inner:
            yield from _keys_of(section, definitions, f"{full}{end}.", value.get("default"))


def _inner_sections(value: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what stands between the key and the names of the section, schema) of each section that a value may hold."""
    if "$ref" in value:
        section = definitions[value["$ref"].rsplit("/", 1)[1]]
        if "properties" in section:
            yield "", section
    for variant in value.get("anyOf", value.get("oneOf", ())):
        yield from _inner_sections(variant, definitions)
    for key, end in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(value.get(key), dict):
            yield from ((end + more, section) for more, section in _inner_sections(value[key], definitions))


def _type(value: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "$ref" in value:
        inner = definitions[value["$ref"].rsplit("/", 1)[1]]
        return "mapping" if "properties" in inner else _type(inner, definitions)
    if variants := value.get("anyOf", value.get("oneOf")):
        return " or ".join(dict.fromkeys(_type(variant, definitions) for variant in variants))
    if choices := value.get("enum", [value["const"]] if "const" in value else []):
        return ", ".join(f"`{choice}`" for choice in choices)
    kind = "path" if value.get("format") == "path" else value.get("type", "any value")
    bounds = ", ".join(f"{sign} {value[bound]:,}" for bound, sign in _BOUNDS.items() if bound in value)
    return f"{_NAMES.get(kind, kind)} {bounds}".strip()
