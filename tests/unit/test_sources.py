"""Documents from files: every file type, every kind of bad row, and streams cut short."""

import gzip
import json
import random

import pytest
import zstandard

from data_prep.errors import UserError
from data_prep.sources import Row, Source, find_inputs, input_names


def write(path, data: bytes):
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    path.write_bytes(data)
    return path


def jsonl(texts) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


TEXTS = ["one", "two\nlines", "", "naïve 東京 \U0001f600", "x" * 3_000_000, "last"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_jsonl(tmp_path, suffix):
    source = Source(write(tmp_path / f"a.jsonl{suffix}", jsonl(TEXTS)))
    assert list(source) == [Row(line, text) for line, text in enumerate(TEXTS, 1)]
    assert source.bytes_read == source.path.stat().st_size
    assert source.text_bytes == len(jsonl(TEXTS))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_txt_documents_are_separated_by_blank_lines(tmp_path, suffix):
    data = b"\n\nfirst line\nsecond line\r\n\n \t\nnext\n\n\nlast, without an end"
    rows = list(Source(write(tmp_path / f"a.txt{suffix}", data)))
    assert rows == [Row(3, "first line\nsecond line"), Row(7, "next"), Row(10, "last, without an end")]


def test_bad_rows_are_reported_with_their_line_and_the_rest_is_read(tmp_path):
    lines = [
        b'\xef\xbb\xbf{"text": "with a byte order mark"}',
        b'{"text": ',
        b'{"text": "\xff"}',
        b'{"txt": "a"}',
        b'{"text": 3}',
        b"[1]",
        b'{"text": "\\ud800"}',
        b"",
        b'{"text": "nul \\u0000"}',
        b'{"text": "raw nul \x00"}',
        b'{"text": "end"}',
    ]
    rows = list(Source(write(tmp_path / "a.jsonl", b"\n".join(lines))))
    assert [row.line for row in rows] == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11]
    assert [row.text for row in rows if not row.reason] == ["with a byte order mark", "nul \0", "end"]
    reasons = {row.line: row.reason for row in rows}
    assert "JSON" in reasons[2]
    assert "UTF-8" in reasons[3]
    assert "missing" in reasons[4]
    assert "not a string" in reasons[5]
    assert "not a JSON object" in reasons[6]
    assert reasons[7]
    assert reasons[10]


def test_invalid_utf8_in_txt(tmp_path):
    rows = list(Source(write(tmp_path / "a.txt", b"good\n\nbad \xff\nmore\n\ngood")))
    assert [row.text for row in rows] == ["good", "", "good"]
    assert (rows[1].line, "UTF-8" in rows[1].reason) == (3, True)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_line_over_the_limit_is_passed_over(tmp_path, name):
    long = "y" * 5_000_000
    data = jsonl(["a", long, "b"]) if name == "a.jsonl" else f"a\n\nx\n{long}\nx\n\nb".encode()
    rows = list(Source(write(tmp_path / name, data), max_line_bytes=4_000_000))
    assert [row.text for row in rows] == ["a", "", "b"]
    assert "longer than 4000000 bytes" in rows[1].reason
    assert rows[1].line == (2 if name == "a.jsonl" else 3)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_compression_keeps_what_came_before(tmp_path, suffix, damage):
    letters = random.Random(0)
    texts = ["".join(letters.choices("abcdefghijklmnop \n", k=200)) for _ in range(20_000)]
    path = write(tmp_path / f"a.jsonl{suffix}", jsonl(texts))
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) * 2 // 3 :]
    else:
        data[len(data) * 2 // 3] ^= 0x55
    path.write_bytes(data)
    *rows, last = list(Source(path))
    good = [row.text for row in rows if not row.reason]
    assert "damaged or truncated" in last.reason
    assert last.line == len(rows) + 1
    assert len(good) > 5000
    if damage == "cut":
        assert good == texts[: len(good)]


def test_concatenated_zstd_frames_and_gzip_members(tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(jsonl(["a"])) + zstandard.compress(jsonl(["b", "c"])))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(["a"])) + gzip.compress(jsonl(["b", "c"])))
    for suffix in (".zst", ".gz"):
        assert [row.text for row in Source(tmp_path / f"a.jsonl{suffix}")] == ["a", "b", "c"]


def test_find_inputs(tmp_path):
    for name in ("b.jsonl", "a.txt.gz", "sub/c.jsonl.zst", "sub/notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = lambda values: [path.relative_to(tmp_path).as_posix() for path in find_inputs(values)]  # noqa: E731
    assert names([tmp_path]) == ["a.txt.gz", "b.jsonl", "sub/c.jsonl.zst"]
    assert names([f"{tmp_path}/*.jsonl"]) == ["b.jsonl"]
    assert names([f"{tmp_path}/**/*.jsonl*"]) == ["b.jsonl", "sub/c.jsonl.zst"]
    assert names([tmp_path / "sub/c.jsonl.zst", tmp_path, tmp_path / "b.jsonl"])[0] == "sub/c.jsonl.zst"
    assert len(names([tmp_path / "b.jsonl", tmp_path])) == 3
    for value in ("none.jsonl", "*.nothing"):
        with pytest.raises(UserError, match=r"none\.jsonl|nothing"):
            find_inputs([tmp_path / value])
    with pytest.raises(UserError, match=r"notes\.md is of an unknown type"):
        find_inputs([tmp_path / "sub/notes.md"])


def test_input_names_do_not_depend_on_the_place(tmp_path):
    assert input_names([tmp_path / "x" / "a.txt", tmp_path / "y" / "a.txt"]) == ["x/a.txt", "y/a.txt"]
    assert input_names([tmp_path / "x" / "a.txt"]) == ["a.txt"]
