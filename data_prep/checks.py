"""Checks of what may come from someone else: JSON against the types it should have, an index against itself."""

import json
import reprlib
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin

import numpy as np

MAX_NUMBER = 1 << 63
MAX_IDS_BYTES = 64 << 20  # of one block; parsed, JSON takes many times its size


def typed(kind: Any, value: Any, place: str) -> Any:
    """`value`, as JSON gave it, if it is a `kind`, with the dataclasses in it made.

    `kind` is int (from 0 to 2^63 - 1), str, list[...], dict[str, ...], a union of such, or a dataclass of such. Raises
    ValueError naming the place.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _instance(kind, value, place)
    if origin is UnionType:
        return None if value is None else typed(parts[0], value, place)
    if origin is list and type(value) is list:
        return [typed(parts[0], item, f"{place}[{number}]") for number, item in enumerate(value)]
    if origin is dict and type(value) is dict:
        return {key: typed(parts[1], item, f"{place}.{key}") for key, item in value.items()}
    if kind is int and type(value) is int and 0 <= value < MAX_NUMBER:
        return value
    if kind is str and type(value) is str:
        return value
    expected = {int: "a whole number from 0 to 2^63 - 1", str: "a text", list: "a list", dict: "an object"}
    raise ValueError(f"{place} is {reprlib.repr(value)}, not {expected[origin or kind]}")


def _instance(kind: Any, value: Any, place: str) -> Any:
    if type(value) is not dict:
        raise ValueError(f"{place} is {reprlib.repr(value)}, not an object")
    prefix = f"{place}." if place else ""
    types = {field.name: field.type for field in fields(kind)}
    for name in types:
        if name not in value:
            raise ValueError(f"it has no {prefix}{name}")
    for name in value:
        if name not in types:
            raise ValueError(f"{reprlib.repr(prefix + name)} is not a key of the format")
    return kind(**{name: typed(type_, value[name], f"{prefix}{name}") for name, type_ in types.items()})


def check_index(header: np.void, table: np.ndarray, lengths: np.ndarray, token_bytes: int, tar_bytes: int) -> None:
    """Raise ValueError unless an index agrees with itself and points into a tar of `tar_bytes`.

    `table` [blocks] of BLOCK_RECORD, `lengths` uint32 [documents]. After it, the tar's arrays can be mapped blindly.
    """
    if header["token_bytes"] != token_bytes:
        raise ValueError(f"its tokens have {header['token_bytes']} bytes, the manifest's {token_bytes}")
    for name in ("documents", "tokens", *(name for name in table.dtype.names or () if name.endswith("_offset"))):
        if (largest := int(table[name].max(initial=0))) > tar_bytes:
            raise ValueError(f"a block's {name} is {largest}, more than the {tar_bytes} bytes of the tar")
    if (largest := int(table["ids_bytes"].max(initial=0))) > min(MAX_IDS_BYTES, tar_bytes):
        raise ValueError(f"a block's ids_bytes is {largest}, more than {MAX_IDS_BYTES} or than the tar")
    documents, tokens = table["documents"].astype(np.int64), table["tokens"].astype(np.int64)
    first = np.cumsum(documents) - documents
    if not documents.all() or not np.array_equal(first, table["first_document"]) or documents.sum() != len(lengths):
        raise ValueError("its blocks do not share out its documents")
    sums = np.add.reduceat(lengths, first, dtype=np.int64) if len(lengths) else tokens
    if not lengths.all() or not np.array_equal(sums, tokens) or tokens.sum() != header["tokens"]:
        raise ValueError("its document lengths do not add up to its tokens, or one is 0")
    keys = block_keys(table)
    if (keys[1:] <= keys[:-1]).any():
        raise ValueError("its blocks are not in the order of their numbers")
    if not (table["tokens_offset"].all() and table["ends_offset"].all()):
        raise ValueError("a block has no tokens or no ends")
    words, ids = -(-tokens // 8), table["ids_bytes"].astype(np.int64)
    for name, size in (("tokens", token_bytes * tokens), ("ends", 4 * documents), ("words", words), ("ids", ids)):
        offset = table[f"{name}_offset"].astype(np.int64)
        if ((offset > 0) & (offset + size > tar_bytes)).any():
            raise ValueError(f"a block's {name} would lie beyond the end of the tar")


def block_keys(table: np.ndarray) -> np.ndarray:
    """Task and block number of each block as one number, uint64 [blocks]."""
    return table["task"].astype(np.uint64) << np.uint64(32) | table["number"].astype(np.uint64)


def document_ids(data: bytes, documents: int) -> list[str | int]:
    """The list in an `ids` member; raises ValueError unless it is one of `documents` strings and integers."""
    try:
        ids = json.loads(data)
    except RecursionError:
        raise ValueError("they are nested too deeply") from None
    if type(ids) is not list or len(ids) != documents or not {type(id) for id in ids} <= {str, int}:
        raise ValueError(f"they are not a list of {documents} strings and integers")
    return ids
