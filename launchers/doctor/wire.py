"""Results of many processes through srun's standard output, which cuts lines at 1,024 bytes and mixes them.

Whatever else is printed there, such as a login shell's greeting, is passed over.
"""

import base64
import contextlib
import json
import re
import zlib
from collections import defaultdict
from typing import Any

from data_prep.reading import MAX_JSON_BYTES, parse_json

_MARK = "maskwright-doctor"
_CHARACTERS = 700
_NUMBER = r"([0-9]{1,9})"
_LINE = re.compile(rf"{_MARK} {_NUMBER} {_NUMBER}/{_NUMBER} (\S+)$", re.MULTILINE)


def encode(rank: int, value: Any) -> str:
    """Short lines that carry a JSON value of a process."""
    text = base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()
    parts = [text[start : start + _CHARACTERS] for start in range(0, len(text), _CHARACTERS)]
    return "".join(f"{_MARK} {rank} {number}/{len(parts)} {part}\n" for number, part in enumerate(parts))


def decode(output: str) -> dict[int, Any]:
    """The values by rank, of those whose lines have all arrived undamaged."""
    parts: dict[int, dict[int, str]] = defaultdict(dict)
    wanted: dict[int, int] = {}
    for rank, number, count, part in _LINE.findall(output):
        parts[int(rank)][int(number)] = part
        wanted[int(rank)] = int(count)
    whole = {rank: found for rank, found in sorted(parts.items()) if len(found) == wanted[rank]}
    values: dict[int, Any] = {}
    for rank, found in whole.items():
        with contextlib.suppress(ValueError, zlib.error):
            values[rank] = _value("".join(found[number] for number in sorted(found)))
    return values


def _value(text: str) -> Any:
    """Raises ValueError or zlib.error for text that no process has encoded."""
    data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MAX_JSON_BYTES)
    return parse_json(data, Any, nan=True)
