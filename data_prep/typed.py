"""Check JSON values against the types that they should have, and make dataclasses of them."""

import functools
import reprlib
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

MAX_NUMBER = 1 << 63
MAX_FLOAT = sys.float_info.max
YEAR_9999 = 253_370_000_000  # Unix seconds


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


class NoNul:
    """Marks a text that is used as a path and must not contain NUL."""


class Moment:
    """Marks seconds since 1970 that a calendar has a date for."""


class AnyFloat:
    """Marks a number that may be NaN or infinite."""


PathText = Annotated[str, NoNul]
Measurement = Annotated[float, AnyFloat]
UnixTime = Annotated[float, Moment]


class _WrongError(Exception):
    """`say` makes the message from the place, which grows at its front on the way up: a sound value costs nothing."""

    def __init__(self, say: Callable[[str], str], place: str = "") -> None:
        self.say, self.place = say, place

    def within(self, place: str) -> "_WrongError":
        return _WrongError(self.say, place + self.place)


def _not(value: Any, expected: str) -> _WrongError:
    return _WrongError(lambda place: f"{place} is {reprlib.repr(value)}, not {expected}")


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """The function that turns JSON values into a `kind`, or raises _WrongError."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _instance_reader(kind)
    if origin is Annotated:
        return _MARKED[parts[1]]
    if origin in (UnionType, Union):
        return _union_reader(parts)
    if origin is Literal:
        return _literal_reader(parts)
    if origin is list:
        return _list_reader(_reader(parts[0]))
    if origin is tuple:
        return _tuple_reader(parts)
    if origin is dict:
        return _dict_reader(_reader(parts[1]))
    return _SIMPLE[kind]


def _whole_number(value: Any) -> int:
    if type(value) is int and 0 <= value < MAX_NUMBER:
        return value
    raise _not(value, "a whole number from 0 to 2^63 - 1")


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    raise _not(value, "a text")


def _path_text(value: Any) -> str:
    if type(value) is str and "\0" not in value:
        return value
    raise _not(value, "a path")


def _finite_number(value: Any) -> float:
    if type(value) in (int, float) and abs(value) <= MAX_FLOAT:
        return value
    raise _not(value, "a finite number")


def _moment(value: Any) -> float:
    if type(value) in (int, float) and 0 <= value < YEAR_9999:
        return value
    raise _not(value, "a time in seconds since 1970")


def _any_number(value: Any) -> float:
    if type(value) is float:
        return value
    return _finite_number(value)


def _true_or_false(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _not(value, "true or false")


def _nothing(value: Any) -> None:
    if value is not None:
        raise _not(value, "null")


_SIMPLE: dict[Any, Callable[[Any], Any]] = {
    int: _whole_number,
    float: _finite_number,
    bool: _true_or_false,
    str: _text,
    NoneType: _nothing,
    Any: lambda value: value,
}
_MARKED: dict[Any, Callable[[Any], Any]] = {NoNul: _path_text, Moment: _moment, AnyFloat: _any_number}


def _literal_reader(values: tuple[Any, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        for one in values:
            if type(value) is type(one) and value == one:
                return value
        raise _not(value, " or ".join(map(repr, values)))

    return read


def _union_reader(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
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


def _tuple_reader(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    if kinds[-1] is Ellipsis:
        whole = _list_reader(_reader(kinds[0]))
        return lambda value: tuple(whole(value))
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(readers):
            raise _not(value, f"a list of {len(readers)}")
        found: list[Any] = []
        try:
            for inner, item in zip(readers, value, strict=True):
                found.append(inner(item))
        except _WrongError as wrong:
            raise wrong.within(f"[{len(found)}]") from None
        return tuple(found)

    return read


def _list_reader(inner: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _not(value, "a list")
        found: list[Any] = []
        try:
            for item in value:
                found.append(inner(item))
        except _WrongError as wrong:
            raise wrong.within(f"[{len(found)}]") from None
        return found

    return read


def _dict_reader(inner: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _not(value, "an object")
        key = ""
        try:
            return {(key := name): inner(item) for name, item in value.items()}
        except _WrongError as wrong:
            raise wrong.within(f".{key}") from None

    return read


def _other_keys(found: list[str], wanted: list[str], known: list[str]) -> _WrongError | None:
    for name in wanted:
        if name not in found:
            return _WrongError(lambda place: f"it has no {place}", f".{name}")
    for name in found:
        if name not in known:
            return _WrongError(lambda place: f"{reprlib.repr(place)} is not a key of the format", f".{name}")
    return None


def _instance_reader(kind: Any) -> Callable[[Any], Any]:
    types = get_type_hints(kind, include_extras=True)
    readers = {field.name: _reader(types[field.name]) for field in fields(kind)}
    wanted = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _not(value, "an object")
        if value.keys() != readers.keys() and (wrong := _other_keys(list(value), wanted, list(readers))):
            raise wrong
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
