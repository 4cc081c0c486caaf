"""Read files that may be damaged or hostile: regular files of limited size, as JSON of the expected types.

Every failure is a UserError of one short line that names the file, the position in it and the expected value.
"""

import functools
import itertools
import json
import math
import os
import re
import reprlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, BinaryIO, Literal, Union, get_args, get_origin, get_type_hints

from data_prep.common.errors import MissingFile, UnusableInput, UserError, one_line
from data_prep.common.files import open_below, open_plain

MAX_JSON_BYTES = 64 << 20
MAX_CONFIG_BYTES = 16 << 20  # of the configuration of a model or tokenizer
MAX_DEPTH = 100
MAX_NUMBER = 1 << 63
MAX_FLOAT = sys.float_info.max
YEAR_9999 = 253_370_000_000  # Unix seconds
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
_MAX_DIGITS = 40  # of an integer: 128 bits
_MAX_REASON = 160  # characters of a reason in a message
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

PathText = Annotated[str, "a path"]
"""A path as text. It must not contain NUL."""

Measurement = Annotated[float, "a number"]
"""A number that may be NaN or infinite."""

UnixTime = Annotated[float, "a time in seconds since 1970"]
"""Seconds since 1970, up to the year 9999."""


def open_regular(path: Path, follow: bool = True) -> BinaryIO:
    """Open a file as open_plain does, but raise UserError for every failure, and MissingFile if it does not exist."""
    try:
        return open_plain(path, follow)
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from None


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES, hint: str = "", follow: bool = True) -> bytes:
    """The content of a regular file of at most `limit` bytes. Messages end with `hint`, which says what to do.

    Raises:
        MissingFile: if it does not exist. UserError: if it cannot be read, is larger, or is not a regular file.
    """
    return _content(lambda: open_plain(path, follow), path, limit, hint)


def _content(opened: Callable[[], BinaryIO], path: Path, limit: int, hint: str) -> bytes:
    try:
        with opened() as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise cannot_read(path, error, hint) from None
    if len(data) > limit:
        raise unusable(path, f"it has more than {limit} bytes, which is too many for such a file", hint)
    return data


def read_below(folder: Path, name: str) -> bytes:
    """The content of a file that open_below opens, of at most MAX_JSON_BYTES. Raises as read_bytes."""
    return _content(lambda: open_below(folder, name), folder / name, MAX_JSON_BYTES, "")


def require_own_files(folder: Path) -> None:
    """Raise UserError unless a folder that is to be sent or copied has only folders and regular files, and no links.

    Only the folder itself may be a link, because the user named it.
    """
    for path, folders, names in os.walk(folder):
        for name in (*folders, *names):
            if Path(path, name).is_symlink() or name in names:
                open_regular(Path(path, name), follow=False).close()


def read_text(path: Path, limit: int = MAX_JSON_BYTES, hint: str = "") -> str:
    """The text of a regular UTF-8 file. Raises as `read_bytes`, and UserError if it is not UTF-8."""
    try:
        return _decoded(read_bytes(path, limit, hint))
    except ValueError as error:
        raise unusable(path, str(error), hint) from None


def read_json(path: Path, kind: Any, limit: int = MAX_JSON_BYTES, hint: str = "", nan: bool = False) -> Any:
    """The JSON value of a file, as a `kind` (see `typed`).

    Args:
        limit: most bytes of the file. hint: advice for messages. nan: allow NaN and infinities.

    Raises:
        MissingFile: if it does not exist. UserError: if it cannot be read, or has another value.
    """
    data = read_bytes(path, limit, hint)
    try:
        return parse_json(data, kind, nan)
    except ValueError as error:
        raise unusable(path, str(error), hint) from None


def json_or_none(path: Path, kind: Any, nan: bool = False) -> Any:
    """As read_json, but None if the file is missing or cannot be read, or has another value."""
    try:
        return read_json(path, kind, nan=nan)
    except UserError:
        return None


def parse_json(data: bytes | str, kind: Any, nan: bool = False) -> Any:
    """The JSON value of `data`, as a `kind` (see `typed`).

    Raises ValueError for a wrong encoding, invalid JSON, a repeated key, a number with too many digits, more than
    MAX_DEPTH levels, or a value of another type.
    """
    text = data if isinstance(data, str) else _decoded(data)
    try:
        value = (_WITH_NAN if nan else _STRICT).decode(text)
        _check_depth(value, MAX_DEPTH)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair, which is not text") from None
    return typed(kind, value)


def unusable(place: Path | str, reason: str, hint: str = "") -> UserError:
    """The error for a file that cannot be used: its name, the reason and the advice in one line."""
    return UnusableInput(_with_hint(f"{place} cannot be used: {one_line(reason, _MAX_REASON)}.", hint))


def cannot_read(path: Path | str, error: OSError | ValueError, hint: str = "") -> UserError:
    """The error for a file that cannot be opened or read; MissingFile if it does not exist."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingFile(_with_hint(f"{path}: there is no such file.", hint))
    reason = error.strerror if isinstance(error, OSError) else "its name has a character that no file name may have"
    return UnusableInput(_with_hint(f"{path} cannot be read: {reason}.", hint))


def _with_hint(message: str, hint: str) -> str:
    return f"{message.removesuffix('.')}; {hint.removesuffix('.')}." if hint else message


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8 (byte {error.start + 1})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has the key {reprlib.repr(next(key for key in keys if keys.count(key) > 1))} twice")
    return value


def _whole_number(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"it has a number of {len(text)} digits; the limit is {_MAX_DIGITS}")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("it has a number that is too large")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"it has the number {text}, which is not JSON")


_STRICT = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_whole_number, parse_float=_finite, parse_constant=_no_constant
)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole_number)


def _check_depth(value: Any, levels: int) -> None:
    if type(value) not in (dict, list):
        return
    if not levels:
        raise ValueError(_TOO_DEEP)
    for inner in value.values() if type(value) is dict else value:
        _check_depth(inner, levels - 1)


_Reader = Callable[[Any], Any]


class _Mismatch(Exception):
    """A value of another type at `path`, which grows at its front as the error leaves the enclosing values."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason, self.path = reason, path


def typed(kind: Any, value: Any) -> Any:
    """Check a value from JSON and turn it into a `kind`, with the dataclasses in it.

    `kind` is int (0 to 2^63 - 1), float (finite; a whole number is valid), bool, str, PathText, UnixTime, Measurement,
    None, Any, Literal[...], list[...], dict[str, ...], tuple[...] (a list in JSON), a union of these, or a dataclass of
    these. A field of a dataclass with a default may be missing. Raises ValueError with the position of the wrong value.
    """
    try:
        return _reader(kind)(value)
    except _Mismatch as error:
        raise ValueError(f"{error.path.removeprefix('.') or 'it'} {error.reason}") from None


@functools.cache
def _reader(kind: Any) -> _Reader:
    """The function that turns JSON values into a `kind`, or raises _Mismatch."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin in (UnionType, Union):
        return _union_reader(parts)
    if origin is Literal:
        names = " or ".join(map(repr, parts))
        return _checked(lambda value: any(type(value) is type(part) and value == part for part in parts), names)
    if origin is list or parts[1:] == (...,):
        item = _reader(parts[0])
        return lambda value: origin(_read_items(itertools.count(), itertools.repeat(item), _LIST(value)))
    if origin is tuple:
        items = [_reader(part) for part in parts]
        right_size = _checked(lambda value: type(value) is list and len(value) == len(parts), f"a list of {len(parts)}")
        return lambda value: tuple(_read_items(itertools.count(), items, right_size(value)))
    if origin is dict:
        item = _reader(parts[1])

        def read(value: Any) -> Any:
            values = _read_items(_OBJECT(value), itertools.repeat(item), value.values())
            return dict(zip(value, values, strict=True))

        return read
    return _SIMPLE[kind]


def _checked(fits: Callable[[Any], bool], expected: str) -> _Reader:
    def read(value: Any) -> Any:
        if fits(value):
            return value
        raise _Mismatch(f"is {reprlib.repr(value)}, not {expected}")

    return read


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_FLOAT


_LIST = _checked(lambda value: type(value) is list, "a list")
_OBJECT = _checked(lambda value: type(value) is dict, "an object")
_SIMPLE: dict[Any, _Reader] = {
    int: _checked(lambda value: type(value) is int and 0 <= value < MAX_NUMBER, "a whole number from 0 to 2^63 - 1"),
    float: _checked(_is_finite, "a finite number"),
    bool: _checked(lambda value: type(value) is bool, "true or false"),
    str: _checked(lambda value: type(value) is str, "a text"),
    NoneType: _checked(lambda value: value is None, "null"),
    Any: lambda value: value,
    PathText: _checked(lambda value: type(value) is str and "\0" not in value, "a path"),
    UnixTime: _checked(lambda value: _is_finite(value) and 0 <= value < YEAR_9999, "a time in seconds since 1970"),
    Measurement: _checked(lambda value: type(value) is float or _is_finite(value), "a finite number"),
}


def _union_reader(kinds: tuple[Any, ...]) -> _Reader:
    """Accept the first kind that fits. A wrong value gets the message of the first kind except None."""
    readers = [_reader(kind) for kind in kinds if kind is not NoneType]

    def read(value: Any) -> Any:
        if value is None and NoneType in kinds:
            return None
        errors: list[_Mismatch] = []
        for inner in readers:
            try:
                return inner(value)
            except _Mismatch as error:
                errors.append(error)
        raise errors[0]

    return read


def _read_items(keys: Iterable[Any], readers: Iterable[_Reader], values: Iterable[Any]) -> list[Any]:
    items: list[Any] = []
    key: Any = None
    try:
        for key, inner, value in zip(keys, readers, values, strict=False):  # noqa: B007
            items.append(inner(value))
    except _Mismatch as error:
        error.path = (f"[{key}]" if type(key) is int else f".{key}") + error.path
        raise
    return items


def _dataclass_reader(kind: Any) -> _Reader:
    types = get_type_hints(kind, include_extras=True)
    readers = {field.name: _reader(types[field.name]) for field in fields(kind)}
    required = [field.name for field in fields(kind) if field.default is field.default_factory is MISSING]

    def read(value: Any) -> Any:
        _OBJECT(value)
        for name in required if value.keys() != readers.keys() else ():
            if name not in value:
                raise _Mismatch("is missing", f".{name}")
        for name in value:
            if name not in readers:
                raise _Mismatch("is not a key of the format", f".{reprlib.repr(name)}")
        items = _read_items(value, map(readers.__getitem__, value), value.values())
        return kind(**dict(zip(value, items, strict=True)))

    return read
