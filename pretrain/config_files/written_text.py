"""Keys of the config that hold text keep a value as written: `0123`, `2.10`, `1e3` and `on` stay text."""

import typing
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any

import yaml
from pydantic import BaseModel

from pretrain.config import Config

_TAG = "tag:yaml.org,2002:"
INT, FLOAT, MERGE = _TAG + "int", _TAG + "float", _TAG + "merge"
_TEXT = _TAG + "str"
_READ_AS_OTHERS = {INT, FLOAT, _TAG + "bool", _TAG + "timestamp", _TAG + "value"}  # `null` stays: it is no text


def kind_at(kind: Any, keys: Sequence[str]) -> Any:
    """The annotation of the value at these keys below a value of the annotation `kind`; Any if it is unknown."""
    for key in keys:
        kind = _inner(kind, key)
    return kind


def section_in(kind: Any) -> type[BaseModel] | None:
    """The section of keys that a value of this annotation may be."""
    return next((option for option in _alternatives(kind) if _is_section(option)), None)


def keep_written(node: yaml.Node, kind: Any) -> yaml.Node:
    """A copy of a tree of YAML nodes, with the values of text keys and all keys tagged as text.

    `kind` is the annotation of the whole tree. It is a copy, as an alias may use one node for a text and for a number.
    """
    if isinstance(node, yaml.ScalarNode):
        tag = _TEXT if node.tag in _READ_AS_OTHERS and _is_text(kind) else node.tag
        return yaml.ScalarNode(tag, node.value, node.start_mark, node.end_mark)
    if isinstance(node, yaml.SequenceNode):
        items: list[Any] = [keep_written(item, _inner(kind, "")) for item in node.value]
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)
    items = []
    for key, value in node.value:
        if key.tag == MERGE:
            lists = isinstance(value, yaml.SequenceNode)
            items.append((key, keep_written(value, list[kind] if lists else kind)))
        else:
            inner = _inner(kind, key.value) if isinstance(key, yaml.ScalarNode) else Any
            items.append((keep_written(key, str), keep_written(value, inner)))
    return yaml.MappingNode(node.tag, items, node.start_mark, node.end_mark)


def _alternatives(kind: Any) -> list[Any]:
    """The types of a union, without their metadata."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _alternatives(parts[0])
    return [inner for part in parts for inner in _alternatives(part)] if origin in (typing.Union, UnionType) else [kind]


def _is_text(kind: Any) -> bool:
    """Whether a single value of this annotation, or of an item of its list, can be text and no number."""
    kinds = _alternatives(kind)
    lists = [kind for kind in kinds if typing.get_origin(kind) is list]
    kinds += [item for kind in lists for item in _alternatives(_inner(kind, ""))]
    texts = any(kind in (str, Path) or getattr(kind, "takes_text", False) for kind in kinds)
    return texts and not {int, float, bool} & {*kinds}


def _inner(kind: Any, key: str) -> Any:
    """The annotation of the value of a key, or of the items of a list."""
    for option in _alternatives(kind):
        origin, parts = typing.get_origin(option), typing.get_args(option)
        if origin in (list, tuple, dict):
            return parts[-1] if origin is dict else parts[0]
        if _is_section(option):
            model = Config if key in getattr(option, "of_whole", ()) else option
            if key in model.model_fields:
                return model.model_fields[key].annotation
    return Any


def _is_section(kind: Any) -> bool:
    return typing.get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel)
