"""Check JSON values against the types that they should have, and make dataclasses of them."""

import functools
import itertools
import reprlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

MAX_NUMBER = 1 << 63
MAX_FLOAT = sys.float_info.max
YEAR_9999 = 253_370_000_000  # Unix seconds

PathText = Annotated[str, "a path"]
"""A text that is used as a path and must not contain NUL."""

Measurement = Annotated[float, "a number"]
"""A number that may be NaN or infinite."""

UnixTime = Annotated[float, "a time in seconds since 1970"]
"""Seconds since 1970 that a calendar has a date for."""

_Reader = Callable[[Any], Any]


def typed(kind: Any, value: Any) -> Any:
    """`value`, as JSON gave it, if it is a `kind`, with the dataclasses in it made.

    `kind` is int (from 0 to 2^63 - 1), float (finite; a whole number counts), bool, str, PathText, UnixTime,
    Measurement, None, Any (which everything is), Literal[...], list[...], dict[str, ...], tuple[...] (a list in JSON),
    a union of these, or a dataclass of such. A field of a dataclass that has a default may be missing.

    Raises:
        ValueError: naming the place.
    """
    try:
        return _reader(kind)(value)
    except _WrongError as wrong:
        raise ValueError(wrong.say(wrong.place.removeprefix(".") or "it")) from None


class _WrongError(Exception):
    """`say` makes the message from the place, which grows at its front on the way up: a sound value costs nothing."""

    def __init__(self, say: Callable[[str], str], place: str = "") -> None:
        self.say, self.place = say, place

    def within(self, place: str) -> "_WrongError":
        return _WrongError(self.say, place + self.place)


def _not(value: Any, expected: str) -> _WrongError:
    return _WrongError(lambda place: f"{place} is {reprlib.repr(value)}, not {expected}")


@functools.cache
def _reader(kind: Any) -> _Reader:
    """The function that turns JSON values into a `kind`, or raises _WrongError."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _instance_reader(kind)
    if origin in (UnionType, Union):
        return _union_reader(parts)
    if origin is Literal:
        return _checked(
            lambda value: any(type(value) is type(part) and value == part for part in parts),
            " or ".join(map(repr, parts)),
        )
    if origin is list:
        return _list_reader(_reader(parts[0]))
    if origin is tuple:
        return _tuple_reader(parts)
    if origin is dict:
        return _dict_reader(_reader(parts[1]))
    return _SIMPLE[kind]


def _checked(fits: Callable[[Any], bool], expected: str) -> _Reader:
    def read(value: Any) -> Any:
        if fits(value):
            return value
        raise _not(value, expected)

    return read


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_FLOAT


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
    """The first of `kinds` that a value is; of a wrong one, the message is that of the first kind but None."""
    readers = [_reader(kind) for kind in kinds if kind is not NoneType]
    optional = NoneType in kinds

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        wrong: list[_WrongError] = []
        for inner in readers:
            try:
                return inner(value)
            except _WrongError as error:
                wrong.append(error)
        raise wrong[0]

    return read


def _read_items(readers: Iterable[_Reader], value: list[Any]) -> list[Any]:
    found: list[Any] = []
    try:
        for inner, item in zip(readers, value, strict=False):
            found.append(inner(item))
    except _WrongError as wrong:
        raise wrong.within(f"[{len(found)}]") from None
    return found


def _list_reader(inner: _Reader) -> _Reader:
    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _not(value, "a list")
        return _read_items(itertools.repeat(inner), value)

    return read


def _tuple_reader(kinds: tuple[Any, ...]) -> _Reader:
    if kinds[-1] is Ellipsis:
        whole = _list_reader(_reader(kinds[0]))
        return lambda value: tuple(whole(value))
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(readers):
            raise _not(value, f"a list of {len(readers)}")
        return tuple(_read_items(readers, value))

    return read


def _dict_reader(inner: _Reader) -> _Reader:
    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _not(value, "an object")
        key = ""
        try:
            return {(key := name): inner(item) for name, item in value.items()}
        except _WrongError as wrong:
            raise wrong.within(f".{key}") from None

    return read


def _instance_reader(kind: Any) -> _Reader:
    types = get_type_hints(kind, include_extras=True)
    readers = {field.name: _reader(types[field.name]) for field in fields(kind)}
    wanted = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]

    def check_keys(value: dict[str, Any]) -> None:
        if missing := [name for name in wanted if name not in value]:
            raise _WrongError(lambda place: f"it has no {place}", f".{missing[0]}")
        if unknown := [name for name in value if name not in readers]:
            raise _WrongError(lambda place: f"{reprlib.repr(place)} is not a key of the format", f".{unknown[0]}")

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _not(value, "an object")
        if value.keys() != readers.keys():
            check_keys(value)
        found: dict[str, Any] = {}
        name = ""
        try:
            for name, inner in readers.items():
                if name in value:
                    found[name] = inner(value[name])
        except _WrongError as wrong:
            raise wrong.within(f".{name}") from None
        return kind(**found)

    return read
