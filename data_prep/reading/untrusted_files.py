"""Read files that may be damaged or hostile: regular files alone, of limited size, as JSON of the expected types.

Every failure is one UserError of one line, which names the file, the place in it and what is expected.
"""

import json
import math
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.errors import MAX_MESSAGE, MissingFile, UnusableInput, UserError, one_line
from data_prep.files import open_plain
from data_prep.reading.typed_values import typed

MAX_JSON_BYTES = 64 << 20
MAX_CONFIG_BYTES = 16 << 20  # of a model's or tokenizer's configuration
MAX_DEPTH = 100
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
_MAX_DIGITS = 40  # of an integer: 128 bits
_MAX_PATH = 160  # characters of a path in a message
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def open_regular(path: Path, follow: bool = True) -> BinaryIO:
    """As open_plain, with a UserError for every failure; MissingFile if there is none."""
    try:
        return open_plain(path, follow)
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from None


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES, hint: str = "", follow: bool = True) -> bytes:
    """The content of a regular file of at most `limit` bytes; `hint` says in a message what to do.

    Raises:
        MissingFile: if there is none. UserError: if it cannot be read, is larger, or not a regular file.
    """
    try:
        with open_regular(path, follow) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise cannot_read(path, error, hint) from None
    except UserError as error:
        raise type(error)(_with_hint(str(error), hint)) from None
    if len(data) > limit:
        raise unusable(path, f"it has more than {limit} bytes, which is too many for such a file", hint)
    return data


def read_text(path: Path, limit: int = MAX_JSON_BYTES, hint: str = "") -> str:
    """The text of a regular file in UTF-8; raises as `read_bytes`, and UserError for bytes that are not UTF-8."""
    try:
        return _decoded(read_bytes(path, limit, hint))
    except ValueError as error:
        raise unusable(path, str(error), hint) from None


def read_json(
    path: Path, kind: Any, limit: int = MAX_JSON_BYTES, hint: str = "", nan: bool = False, follow: bool = True
) -> Any:
    """The JSON value of a file as a `kind` of data_prep.format.integrity_checks.typed; Any: whatever it is.

    Args:
        limit: bytes that such a file has at most. hint: what to do, for a message.
        nan: allow NaN and the infinities. follow: symbolic links.

    Raises:
        MissingFile: if there is none. UserError: if it cannot be read, or holds anything else.
    """
    data = read_bytes(path, limit, hint, follow)
    try:
        return parse_json(data, kind, nan)
    except ValueError as error:
        raise unusable(path, str(error), hint) from None


def parse_json(data: bytes | str, kind: Any, nan: bool = False) -> Any:
    """The JSON value of `data` as a `kind`, as in `read_json`.

    Raises:
        ValueError: saying in a few words what is wrong: the encoding, the JSON, a repeated key, a number of too many
            digits, more than MAX_DEPTH levels, or a value of another type.
    """
    text = data if isinstance(data, str) else _decoded(data)
    try:
        value = (_WITH_NAN if nan else _STRICT).decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair, which is not text") from None
    return typed(kind, value)


def unusable(place: Path | str, reason: str, hint: str = "") -> UserError:
    """The error for a file that cannot be used: its name, why, and what to do, in one line."""
    name = shown_path(place)
    room = max(60, MAX_MESSAGE - len(name) - len(hint) - 25)
    return UnusableInput(_with_hint(f"{name} cannot be used: {one_line(reason, room)}.", hint))


def cannot_read(path: Path | str, error: OSError | ValueError, hint: str = "") -> UserError:
    """The error for a file that the system does not give; MissingFile if there is none."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingFile(_with_hint(f"{shown_path(path)}: there is no such file.", hint))
    reason = error.strerror if isinstance(error, OSError) else "its name holds a character that no file name may have"
    return UnusableInput(_with_hint(f"{shown_path(path)} cannot be read: {reason}.", hint))


def shown_path(path: Path | str) -> str:
    """A path for a message: one line, and a very long one without its middle."""
    text = one_line(str(path), 10_000)
    half = _MAX_PATH // 2
    return text if len(text) <= _MAX_PATH else f"{text[:half]}...{text[3 - half :]}"


def _with_hint(said: str, hint: str) -> str:
    return one_line(f"{said.removesuffix('.')}; {hint.removesuffix('.')}." if hint else said)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8 (byte {error.start + 1})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"it has the key {reprlib.repr(repeated)} twice")
    return found


def _whole_number(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"it has a number of {len(text)} digits; the most are {_MAX_DIGITS}")
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


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for outer in level for inner in _inside(outer) if type(inner) in (dict, list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if type(value) is dict else value if type(value) is list else ()
