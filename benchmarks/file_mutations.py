"""Damaged and hostile versions of a valid file, and the verdict on their reader."""

import collections.abc
import copy
import functools
import gzip
import json
import os
import random
import re
import shutil
import signal
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import zstandard

from data_prep.common.errors import MAX_MESSAGE, UserError
from data_prep.common.reading import Measurement
from tests.support.hostile_json import DEEPEST, DIGITS, NESTED, SURROGATE

SECONDS = 10  # of processor time of one case, as other programs may share the cores
WALL_SECONDS = 120  # a reader that waits uses no processor time
MEMORY = 512 << 20  # bytes that one case may add to the peak
_BOMB_BYTES = 640 << 20
_WRONG: list[Any] = [None, True, 0, -1, 1 << 64, 0.5, -1e308, "", "x", "a\0b", "../x", [], {}, [[]], [None], {"a": 1}]
_RAW = [NESTED, DEEPEST, SURROGATE, DIGITS, f"-{DIGITS}.5", "1e999", "NaN", "-Infinity", '"\\u0000"', '{"a":1,"a":2}']
_PLACE = "a place for what json does not write"
_BYTES = ["cut", "bits", "empty", "zeros", "utf-16", "latin-1", "doubled"]
_WORDS = [
    "",
    "-1",
    "1e999",
    "1" * 30,
    "a\0b",
    "../x",
    "x" * 5000,
    "[",
    "{",
    '"',
    "\t",
    "#",
    ">",
    "\n\n",
    "\x1b[2J",
    "\ud800",
]
_SPECIAL = ["pipe", "folder", "loop", "endless", "gone", "nul"]


@dataclass(frozen=True)
class Reader:
    """A reader of a file: `read` is its public function, called without arguments; `seal` restores a checksum.

    form: "json", "lines" (of JSON), "words", "safetensors" (its header is JSON), "gz", "zst" or "bytes". The result
    must be a `kind`, if there is one.
    """

    name: str
    path: Path
    read: Callable[[], Any]
    form: str = "json"
    kind: Any = None
    seal: Callable[[dict[str, Any]], dict[str, Any]] | None = None


class _TooSlowError(BaseException):
    """A case took more than SECONDS or WALL_SECONDS."""


def attack(reader: Reader, valid: bytes, rng: random.Random) -> tuple[str, str]:
    """Replace the reader's file by a mutation and read it: the mutation, and `accepted`, `refused` or what is wrong."""
    mutation = _mutate(reader, valid, rng)
    try:
        return mutation, verdict(reader)
    finally:
        _remove(reader.path)
        reader.path.write_bytes(valid)


def verdict(reader: Reader) -> str:
    """`accepted`, `refused`, or what is wrong with how the reader took its file."""

    def stop(*_: Any) -> None:
        raise _TooSlowError

    _forget_peak()
    peak = _peak_bytes()
    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    try:
        found = reader.read()
    except UserError as error:
        text = str(error)
        sound = 0 < len(text) <= MAX_MESSAGE and text.isprintable()
        return "refused" if sound else f"message of {len(text)} characters: {text!r:.500}"
    except _TooSlowError:
        return "hang"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"traceback: {type(error).__name__}: {error!s:.300}"
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        took = _peak_bytes() - peak
    if took > MEMORY:
        return f"memory: {took >> 20} MB"
    return "accepted" if reader.kind is None or is_of(reader.kind, found) else f"wrong type: {found!r:.300}"


def _forget_peak() -> None:
    """Let the peak of the memory of this process begin at what it uses now."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


def is_of(kind: Any, value: Any) -> bool:
    """Whether a value has the type that an annotation says, fields of dataclasses included. Shares no code with
    data_prep.common.reading."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin is typing.Annotated:
        return is_of(parts[0], value) and (kind == Measurement or value == value)
    if origin in (types.UnionType, typing.Union):
        return any(is_of(part, value) for part in parts)
    if origin is typing.Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return type(value) is kind and all(is_of(hints[one.name], getattr(value, one.name)) for one in fields(kind))
    if origin in (list, collections.abc.Sequence):
        return type(value) is list and all(is_of(parts[0], one) for one in value)
    if origin is tuple and parts[-1] is Ellipsis:
        return type(value) is tuple and all(is_of(parts[0], one) for one in value)
    if origin is tuple:
        return type(value) is tuple and len(value) == len(parts) and all(map(is_of, parts, value))
    if origin is dict:
        return type(value) is dict and all(type(key) is str and is_of(parts[1], one) for key, one in value.items())
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind or (kind in (None, types.NoneType) and value is None)


def _mutate(reader: Reader, valid: bytes, rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.03:
        return _special(reader.path, rng.choice(_SPECIAL))
    if reader.form in ("gz", "zst") and chance < 0.06:
        reader.path.write_bytes(_bomb(reader.form))
        return "bomb"
    if reader.form in ("bytes", "gz", "zst") or chance < 0.2:
        kind = rng.choice(_BYTES)
        reader.path.write_bytes(_damaged(kind, valid, rng))
        return kind
    if reader.form == "words":
        kind = rng.choice(_WORDS)
        spans = [match.span() for match in re.finditer(rb"[^\s:,=]+", valid)]
        start, end = rng.choice(spans or [(0, 0)])
        reader.path.write_bytes(valid[:start] + kind.encode(errors="surrogatepass") + valid[end:])
        return f"word {kind[:9]!r}"
    if reader.form == "safetensors":
        size = int.from_bytes(valid[:8], "little")
        kind, header = _wrong_json(valid[8 : 8 + size], None, rng)
        reader.path.write_bytes(len(header).to_bytes(8, "little") + header + valid[8 + size :])
        return str(kind)
    lines = valid.splitlines() if reader.form == "lines" else [valid]
    number = rng.randrange(len(lines))
    kind, lines[number] = _wrong_json(lines[number], reader.seal, rng)
    reader.path.write_bytes(b"\n".join(lines) + b"\n")
    return kind


def _wrong_json(text: bytes, seal: Callable[[dict[str, Any]], dict[str, Any]] | None, rng: random.Random) -> Any:
    """A JSON text with one value replaced, removed, added or repeated, and the name of the change."""
    value = json.loads(text)
    places = list(_places(value))
    holder, key = rng.choice(places) if places else (None, None)
    kind = rng.choice(["type", "type", "raw", "removed", "added", "twice"])
    if holder is None or rng.random() < 0.02:
        return "whole", json.dumps(rng.choice(_WRONG)).encode()
    if kind == "type":
        holder[key] = copy.deepcopy(rng.choice(_WRONG))
    elif kind == "removed":
        del holder[key]
    elif kind == "added" and isinstance(holder, dict):
        holder[rng.choice(["extra", "", "a\0b", "x" * 5000])] = rng.choice(_WRONG)
    elif kind == "twice" and isinstance(holder, dict):
        holder[_PLACE] = holder[key]
    else:
        kind, holder[key] = "raw", _PLACE
    sealed = json.dumps(seal(value) if seal and isinstance(value, dict) and kind != "raw" else value)
    new = json.dumps(key) if kind == "twice" else rng.choice(_RAW)
    return kind, sealed.replace(json.dumps(_PLACE), new).encode()


def _places(value: Any) -> collections.abc.Iterator[tuple[Any, Any]]:
    """Each container and key of the values inside a value."""
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(inner)


def _damaged(kind: str, valid: bytes, rng: random.Random) -> bytes:
    if kind == "cut":
        return valid[: rng.randrange(len(valid))]
    if kind == "bits":
        changed = bytearray(valid)
        for _ in range(rng.choice([1, 1, 3, 20])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind in ("utf-16", "latin-1"):
        return (valid.decode("latin-1") + "é").encode(kind)
    return {"empty": b"", "zeros": bytes(len(valid)), "doubled": valid + valid}[kind]


@functools.cache
def _bomb(form: str) -> bytes:
    """Few bytes that expand to _BOMB_BYTES."""
    piece = bytes(1 << 20)
    if form == "gz":
        return gzip.compress(piece) * (_BOMB_BYTES >> 20)
    return zstandard.ZstdCompressor().compress(piece) * (_BOMB_BYTES >> 20)


def _special(path: Path, kind: str) -> str:
    """Replace it by something that is not a regular file."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "nul":
        path.symlink_to("/dev/null")
    return kind


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            path.unlink()
