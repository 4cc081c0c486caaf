"""Reading of damaged or hostile files: valid values, and a one-line error for the rest."""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from data_prep.common.errors import MAX_MESSAGE, MissingDataSet, MissingFile, UnusableInput, UserError
from data_prep.common.reading import PathText, open_regular, parse_json, read_bytes, read_json, read_text, typed
from tests.support.hostile_json import DIGITS, NESTED, SURROGATE


@dataclass(frozen=True)
class Part:
    name: PathText
    share: float


@dataclass(frozen=True)
class Example:
    state: Literal["on", "off"]
    count: int
    ready: bool
    parts: list[Part]
    pair: tuple[int, str]
    places: tuple[int, ...] = ()
    step: int | Literal[-1] = -1
    free: dict[str, Any] = field(default_factory=dict)


SOUND = {"state": "on", "count": 3, "ready": True, "parts": [{"name": "a", "share": 1}], "pair": [1, "b"]}


def refusal(path: Path, kind: Any = Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_json(path, kind, **options)
    message = str(caught.value)
    assert len(message) <= MAX_MESSAGE
    assert "\n" not in message
    return message


def test_a_dataclass_is_made_of_json_of_its_types():
    found = typed(Example, SOUND | {"step": -1, "places": [1, 2], "free": {"x": [None]}})
    assert found == Example("on", 3, True, [Part("a", 1.0)], (1, "b"), (1, 2), -1, {"x": [None]})
    assert typed(Example, SOUND).places == ()


@pytest.mark.parametrize(("change", "said"), [
    ({"state": "?"}, "state is '?', not 'on' or 'off'"),
    ({"count": True}, "count is True, not a whole number"),
    ({"count": -1}, "count is -1, not a whole number"),
    ({"ready": 1}, "ready is 1, not true or false"),
    ({"parts": [{"name": "a\0", "share": 1}]}, r"parts[0].name is 'a\x00', not a path"),
    ({"parts": [{"name": "a", "share": "1"}]}, "parts[0].share is '1', not a finite number"),
    ({"parts": [{"name": "a", "share": True}]}, "parts[0].share is True, not a finite number"),
    ({"parts": [{"name": "a", "share": float("nan")}]}, "parts[0].share is nan, not a finite number"),
    ({"pair": [1]}, "pair is [1], not a list of 2"),
    ({"pair": [1, 2]}, "pair[1] is 2, not a text"),
    ({"step": -2}, "step is -2, not a whole number"),
    ({"free": []}, "free is [], not an object"),
    ({"other": 1}, "'other' is not a key of the format"),
])  # fmt: skip
def test_a_value_of_another_type_is_refused_with_its_place(change, said):
    with pytest.raises(ValueError) as caught:
        typed(Example, SOUND | change)
    assert said in str(caught.value)


def test_a_field_without_a_default_may_not_be_missing():
    with pytest.raises(ValueError, match="count is missing"):
        typed(Example, {key: value for key, value in SOUND.items() if key != "count"})


@pytest.mark.parametrize(("text", "said"), [
    ("", "not valid JSON at line 1, column 1"),
    ('{"a": 1,\nb}', "not valid JSON at line 2"),
    ("[NaN]", "NaN"),
    ("[1e999]", "too large"),
    (f"[{DIGITS}]", "5000 digits"),
    (NESTED, "more than 100 levels"),
    ("[" * 150 + "]" * 150, "more than 100 levels"),
    (f"[{SURROGATE}]", "half of a surrogate pair"),
    ('{"a": 1, "a": 2}', "the key 'a' twice"),
    ("\xff", "not valid JSON"),
])  # fmt: skip
def test_json_that_is_not_sound_is_refused(text, said):
    with pytest.raises(ValueError) as caught:
        parse_json(text.encode(), Any)
    assert said in str(caught.value)


def test_nan_and_whole_surrogate_pairs_are_read_where_they_may_be():
    assert parse_json(b"[Infinity]", Any, nan=True) == [float("inf")]
    assert parse_json(b'"\\ud83d\\ude00"', str) == "\U0001f600"


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    with listening:
        assert "it is a pipe, not a regular file" in refusal(tmp_path / "pipe")
        assert "is a socket, not a regular file" in refusal(tmp_path / "socket")
    assert "is a folder, not a regular file" in refusal(tmp_path)
    assert "is a device, not a regular file" in refusal(Path("/dev/zero"))
    assert "symbolic links" in refusal(tmp_path / "loop")
    assert "no file name may have" in refusal(Path("a\0b"))
    assert "File name too long" in refusal(Path("a" * 5000))


def test_a_missing_file_is_told_from_a_damaged_one(tmp_path):
    with pytest.raises(MissingFile, match="there is no such file; run the command again"):
        read_json(tmp_path / "absent", Any, hint="run the command again")


def test_a_link_is_followed_unless_that_is_forbidden(tmp_path):
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to("file")
    assert read_json(tmp_path / "link", int) == 1
    with pytest.raises(UserError, match="is a symbolic link"):
        read_bytes(tmp_path / "link", follow=False)
    with pytest.raises(UserError):
        open_regular(tmp_path / "link", follow=False)


def test_a_file_that_is_too_large_or_not_text_is_refused(tmp_path):
    path = tmp_path / "file.json"
    path.write_text("[1, 2, 3]")
    assert "more than 4 bytes" in refusal(path, limit=4)
    path.write_bytes(b'"\xff"')
    assert "not text in UTF-8 (byte 2)" in refusal(path)
    with pytest.raises(UserError, match="not text in UTF-8"):
        read_text(path)


def test_a_message_is_one_short_line_that_names_the_file_and_the_remedy(tmp_path):
    path = tmp_path / ("long" * 50 + "\n.json")
    path.write_text('{"count": "' + "x" * 10_000 + '"}')
    message = refusal(path, dict[str, int], hint="delete it")
    assert "count is 'xxx" in message
    assert message.endswith("; delete it.")


LONG_PATH = "/data/" + "folder/" * 60 + "shard.tar"


def test_a_long_path_loses_its_middle_and_the_advice_stays():
    text = str(UnusableInput(f"{LONG_PATH} is damaged; restore it from {LONG_PATH}."))
    assert len(text) <= MAX_MESSAGE
    assert text.startswith("/data/folder/")
    assert text.count("...") == 2
    assert " is damaged; restore it from " in text
    assert text.endswith("shard.tar.")


def test_a_message_of_several_lines_or_long_advice_or_that_fits_is_kept():
    assert str(UserError(f"{LONG_PATH}\n{LONG_PATH}")) == f"{LONG_PATH}\n{LONG_PATH}"
    assert str(UserError("word " * 100)) == "word " * 100
    assert str(UnusableInput("x" * MAX_MESSAGE)) == "x" * MAX_MESSAGE
    assert len(str(UserError(f"{LONG_PATH} cannot be read; restore it"))) <= MAX_MESSAGE


@pytest.mark.parametrize("text", ["a\0b\nc\x1b[31m", "word " * 500, "x" * 10_000_000, "", " " * 1000, "é" * 301])
def test_any_text_becomes_one_short_line(text):
    found = str(UnusableInput(text))
    assert len(found) <= MAX_MESSAGE
    assert found.isprintable()
    assert str(MissingDataSet(text)).isprintable()
