"""Text files: every type, every kind of bad row, truncated streams, and any cut into byte ranges."""

import base64
import gzip
import hashlib
import itertools
import json
import random
import re
import subprocess
import sys
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from data_prep.sources import Options, RowReader, SourceInput, SourceRow, examine, find_inputs
from data_prep.storage import Cache
from tests.support.hostile_json import DEEPEST, HOSTILE
from tests.support.prep import jsonl, whole

KINDS = ["", ".gz", ".zst"]


def write(path, data: bytes):
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    path.write_bytes(data)
    return path


def open_all(path, options=None, **more):
    """Rows of a whole file, through the three public functions."""
    return whole(*find_inputs([path]), Cache(path.parent / "cache", 0), options, **more)


TEXTS = ["one", "two\nlines", "", "naïve 東京 \U0001f600", "x" * 3_000_000, "nul \0", "last"]


@pytest.mark.parametrize("suffix", KINDS)
def test_jsonl(tmp_path, suffix):
    path = write(tmp_path / f"a.jsonl{suffix}", jsonl(TEXTS))
    rows = open_all(path)
    assert list(rows) == [SourceRow(line, text) for line, text in enumerate(TEXTS, 1)]
    assert list(rows) == [SourceRow(line, text) for line, text in enumerate(TEXTS, 1)]
    assert (rows.bytes_read, rows.text_bytes, rows.lines) == (path.stat().st_size, len(jsonl(TEXTS)), len(TEXTS))


@pytest.mark.parametrize("suffix", KINDS)
def test_txt_documents_are_separated_by_blank_lines(tmp_path, suffix):
    data = b"\n\nfirst line\nsecond line\r\n\n \t\nnext\n\n\nlast, without an end"
    rows = open_all(write(tmp_path / f"a.txt{suffix}", data))
    wanted = [(3, "first line\nsecond line"), (7, "next"), (10, "last, without an end")]
    assert list(rows) == [SourceRow(line, text) for line, text in wanted]
    assert rows.lines == 10


@pytest.mark.parametrize("name", ["a.fasta", "a.fa", "a.fasta.gz", "a.fa.zst"])
def test_a_fasta_record_is_a_document(tmp_path, name):
    data = b"\xef\xbb\xbf>sp|P1 first protein \nMKTA\r\n\nYI AK*\n>empty\n>sp|P3\nACGTnn"
    path = write(tmp_path / name, data)
    rows = open_all(path)
    assert list(rows) == [SourceRow(1, "MKTAYIAK*"), SourceRow(5, ""), SourceRow(6, "ACGTnn")]
    assert rows.lines == 7
    headers = open_all(path, Options(id_field="header"))
    assert [row.id for row in headers] == ["sp|P1 first protein", "empty", "sp|P3"]
    with pytest.raises(UserError, match=r"no field 'accession'.*--id-field header keeps"):
        open_all(path, Options(id_field="accession"))


def test_fasta_records_that_cannot_be_used(tmp_path):
    data = b"MKTA\nYI\n>long\nAAAAAA\nAAAAAA\n>\xff\nM\n>good\nMK\n>line\nAAAAAAAAAAAAA\n>long_header\nACGT\n>p\nGT"
    rows = list(open_all(write(tmp_path / "a.fasta", data), Options(id_field="header"), max_bytes=11))
    headless = "no header, or one that is too long: the first line of a FASTA file begins with >"
    assert [(row.line, row.text, row.reason) for row in rows] == [
        (1, "", headless),
        (3, "A" * 11, ""),
        (3, "A", ""),
        (6, "", "invalid UTF-8 at byte 1 of the document: save the file as UTF-8, as with iconv -f LATIN1 -t UTF-8"),
        (8, "MK", ""),
        (10, "A" * 11, ""),
        (10, "AA", ""),
        (12, "", headless),
        (14, "GT", ""),
    ]
    assert [row.bytes for row in rows if row.reason] == [8, 5, 18]


@pytest.mark.parametrize("separator", ["", "a\nb"])
def test_a_separator_is_one_line(separator):
    with pytest.raises(UserError, match="separator"):
        Options(separator=separator)


def test_bad_rows_are_reported_with_their_line_and_the_rest_is_read(tmp_path):
    bad = {
        b'{"text": ': "JSON",
        b'{"text": "\xff"}': "UTF-8",
        b'{"txt": "a"}': "missing",
        b'{"text": 3}': "not a string",
        b"[1]": "not a JSON object",
        b'{"text": "\\ud800"}': "JSON",
        b'{"text": "raw nul \x00"}': "binary",
    }
    lines = [b'\xef\xbb\xbf{"text": "with a byte order mark"}', b"", *bad, b'{"text": "nul \\u0000"}']
    first, *wrong, last = open_all(write(tmp_path / "a.jsonl", b"\n".join(lines)))
    assert (first, last) == (SourceRow(1, "with a byte order mark"), SourceRow(10, "nul \0"))
    assert [row.line for row in wrong] == [*range(3, 10)]
    assert all(words in row.reason for words, row in zip(bad.values(), wrong, strict=True))


def test_json_that_python_stumbles_over_is_a_bad_row(tmp_path):
    lines = [f'{{"text": "x", "more": {value}}}' for value in HOSTILE.values()]
    lines += [f'{{"text": "deep", "more": {DEEPEST}}}', f'{{"text": {DEEPEST}}}']
    path = write(tmp_path / "a.jsonl", "\n".join(lines).encode())
    reasons = [re.split("[:,]", row.reason)[0] for row in open_all(path, Options(id_field=None))]
    assert reasons == ["invalid JSON"] * 3 + ["", "field 'text' is not a string"]
    assert {row.reason for row in open_all(path, Options("text.more"))} >= {"field 'text.more' is missing"}


def test_nested_fields_and_ids(tmp_path):
    lines = [
        {"a": {"b": "nested"}, "id": 7},
        {"a": {"b": "nested"}, "a.b": "literal", "id": "x"},
        {"a": {"b": "no id"}},
        {"a": {"b": "bool id"}, "id": True},
        {"a": {"b": "null id"}, "id": None},
        {"a": "b", "id": 1},
        {"a": {"b": {"c": 1}}, "id": 1},
    ]
    path = write(tmp_path / "a.jsonl", b"\n".join(json.dumps(line).encode() for line in lines))
    rows = list(open_all(path, Options("a.b", "id")))
    assert rows[:2] == [SourceRow(1, "nested", "", 7), SourceRow(2, "literal", "", "x")]
    assert [row.reason for row in rows[2:]] == [
        "id field 'id' is missing",
        "id field 'id' is neither a string nor an integer",
        "id field 'id' is neither a string nor an integer",
        "field 'a.b' is missing",
        "field 'a.b' is not a string, but an object; to read a key of it, name a.b.KEY",
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.txt.zst"])
def test_a_document_over_the_limit_is_cut_and_never_held(tmp_path, name):
    limit = 2_000_000
    long = base64.b64encode(random.Random(0).randbytes(20_000_000)).decode()
    data = jsonl(["a", long, "b"]) if name == "a.jsonl" else f"a\n\nx\n{long}\nx\n\nb".encode()
    path = write(tmp_path / name, data)
    reader, sizes, digest = open_all(path, max_bytes=limit), [], hashlib.sha256()
    tracemalloc.start()
    for row in reader:
        sizes.append((row.line, len(row.text), row.reason))
        digest.update(row.text.encode())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
    if name == "a.jsonl":
        assert sizes == [(1, 1, ""), (2, 0, "the line is longer than 2000000 bytes: split it"), (3, 1, "")]
        assert reader.cut_documents == 0
        return
    rest = len(long) % limit
    assert sizes == [(1, 1, ""), (3, 1, ""), *[(4, limit, "")] * 13, (4, rest + 2, ""), (7, 1, "")]
    assert digest.digest() == hashlib.sha256(f"ax{long}\nxb".encode()).digest()
    assert reader.cut_documents == 1


def test_a_zstd_bomb_is_not_expanded_at_once(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    frames = (jsonl(["a"]), bytes(1 << 29), b"\n")
    path.write_bytes(b"".join(zstandard.compress(frame, 1) for frame in frames))
    tracemalloc.start()
    rows = list(open_all(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row.text for row in rows] == ["a", ""]
    assert "longer than" in rows[1].reason
    assert peak < 300 << 20


@pytest.mark.parametrize(("separator", "data", "texts", "cut_documents"), [
    ("line", "one two three\nfour\n", ["one two", "three", "four"], 1),
    ("file", "one\ntwo\nthree\nfour five six\n", ["one\ntwo", "three", "four", "five six"], 1),
    ("blank", "12345678\n\n123456789\n\n123\n5678", ["12345678", "12345678", "9", "123\n5678"], 1),
    ("blank", "onetwothree\r\nfour\n\nfive\n", ["onetwoth", "ree", "four", "five"], 1),
    ("file", "ééééé 東京東京", ["éééé", "é 東", "京東", "京"], 1),
    ("line", "東京東京東", ["東京", "東京", "東"], 1),
    ("---", "one\n---\none two six\n---\naaaabbbb---\nxx", ["one", "one two", "six", "aaaabbbb", "---\nxx"], 2),
])  # fmt: skip
def test_a_long_document_is_cut_at_a_line_or_word_end(tmp_path, separator, data, texts, cut_documents):
    rows = open_all(write(tmp_path / "a.txt", data.encode()), Options(separator=separator), max_bytes=8)
    assert [row.text for row in rows] == texts
    assert rows.cut_documents == cut_documents


def test_a_pair_is_not_cut(tmp_path):
    for name, data in (("a.txt", "a b\none two three\nlast"), ("b.txt", "c\nd\ne")):
        (tmp_path / name).write_text(data)
    (source,) = find_inputs([f"pair:{tmp_path}/a.txt,{tmp_path}/b.txt"])
    reader = RowReader(source, 0, 1, Options(), Cache(tmp_path, 0), 8)
    assert [(row.text, row.other, row.reason, row.bytes) for row in reader] == [
        ("a b", "c", "", 0),
        ("", "d", "the line is longer than 8 bytes: split it", 13),
        ("last", "e", "", 0),
    ]
    assert reader.cut_documents == 0


GOOD = jsonl(["one", "two"])
BINARY = b"\x7fELF\x02\x01\x01\0\0\0\xff\xfe\xd8" * 200
ZIPPED = gzip.compress(GOOD, mtime=0)
ARRAY = json.dumps([{"text": "one"}], indent=1).encode()


@pytest.mark.parametrize(("name", "data", "read", "words"), [
    ("tail.jsonl.gz", ZIPPED + b"--end--\r\n", 2, "after the compressed data, are not compressed. Rem"),
    ("plain.jsonl.gz", GOOD, 0, "it is not compressed, although its name ends in .gz. Take .gz off its name"),
    ("plain.jsonl.zst", GOOD, 0, "it is not compressed, although its name ends in .zst. Take .zst off its name"),
    ("other.jsonl.gz", zstandard.compress(GOOD), 0, "it is no .gz file, but compressed as .zst. Correct its name"),
    ("window.jsonl.zst", b"\x28\xb5\x2f\xfd\x00\xf8\x01\x00\x00", 0, "its window is larger than 2 GiB, the limit"),
    ("half.jsonl.gz", ZIPPED[:-4], 2, "it ends within compressed data. Copy it again"),
    ("array.jsonl", b'[{"text": "a"}]', 0, "not a JSON object, but a list. Each line must be one"),
    ("pretty.jsonl", ARRAY, 0, "Each line must be one object: jq -c '(arrays | .[]), objects' FILE > NEW.jsonl"),
    ("two.jsonl", b'{"text": "a"} {"text": "b"}', 0, "Each line must be one object"),
    ("utf16.jsonl", GOOD.decode().encode("utf-16"), 0, "in UTF-16. Convert it: iconv -f UTF-16 -t UTF-8"),
    ("program.txt", BINARY, 0, "the file is binary, not UTF-8 text: give"),
    ("program.jsonl", BINARY, 0, "the file is binary, not UTF-8 text: give"),
    ("latin.txt", "café".encode("latin-1"), 0, "save the file as UTF-8, as with iconv -f LATIN1"),
    ("number.jsonl", b'{"text": 5}', 0, "field 'text' is not a string, but a number"),
    ("half.jsonl", b'{"text": "\\ud83d"}', 0, "a character is cut in half"),
    ("nan.jsonl", b'{"txt": "a", "score": NaN}', 0, "field 'text' is missing"),
    ("half.nan.jsonl", b'{"text": "\\ud83d", "score": NaN}', 0, "a character is cut in half"),
])  # fmt: skip
def test_the_reason_names_the_broken_rule_and_the_remedy_and_all_bytes_are_counted(tmp_path, name, data, read, words):
    (tmp_path / name).write_bytes(data)
    rows = list(open_all(tmp_path / name))
    bad = [row for row in rows if row.reason]
    assert [row.text for row in rows if not row.reason] == ["one", "two"][:read]
    assert words in bad[0].reason
    assert len(bad[0].reason) < 250
    whole = len(data) if name != "tail.jsonl.gz" else 9
    assert whole - 3 <= sum(row.bytes for row in bad) <= whole + 1


def test_json_and_compression_of_other_programs_are_read(tmp_path):
    data = b'{"text": "one", "score": NaN, "more": [-Infinity]}\r\n{"text": "x", "text": "two"}'
    path = write(tmp_path / "a.jsonl", data)
    assert [(row.text, row.reason) for row in open_all(path)] == [("one", ""), ("two", "")]
    lines = [b'{"text": "a", "id": %d, "n": NaN}\n' % number for number in (2**64 - 1, 2**64)]
    ids = write(tmp_path / "ids.jsonl", b"".join(lines))
    wrong = "id field 'id' is neither a string nor an integer"
    assert [(row.id, row.reason) for row in open_all(ids, Options(id_field="id"))] == [(2**64 - 1, ""), (None, wrong)]
    long = zstandard.ZstdCompressionParameters.from_level(1, window_log=31, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=long)
    with (tmp_path / "a.jsonl.zst").open("wb") as file, compressor.stream_writer(file) as writer:
        writer.write(GOOD)
    assert [row.text for row in open_all(tmp_path / "a.jsonl.zst")] == ["one", "two"]


def test_frames_members_padding_and_skippable_frames(tmp_path):
    frame = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"  # a skippable frame, as pzstd and seekable zstd write
    first, second = jsonl(["a"]), jsonl(["b", "c"])
    zstd = zstandard.compress(first) + frame + zstandard.compress(second) + frame
    for suffix, data in ((".zst", zstd), (".gz", gzip.compress(first) + gzip.compress(second) + bytes(9))):
        (tmp_path / f"a.jsonl{suffix}").write_bytes(data)
        rows = open_all(tmp_path / f"a.jsonl{suffix}")
        assert [(row.text, row.reason) for row in rows] == [("a", ""), ("b", ""), ("c", "")]


def test_empty_files_and_one_that_shrank(tmp_path):
    for name in ("a.jsonl", "a.txt", "a.txt.gz", "a.jsonl.zst"):
        (tmp_path / name).touch()
        rows = open_all(tmp_path / name)
        assert (list(rows), rows.lines) == ([], 0)
    path = write(tmp_path / "a.jsonl", jsonl(["a"]))
    with pytest.raises(UserError, match="changed while it was read"):
        list(RowReader(SourceInput("", str(path), "jsonl"), 0, 1000, Options(), Cache(tmp_path, 0)))


PIECES = [b"\n", b"\n", b"\r\n", b" ", b"\t", b"---", b"\xef\xbb\xbf", "é".encode(), b"\xff", b"a", b"word word", b"\0"]
FASTA = [b">", b">p1", b"\n>p2 of two\n", b"MKTAYIAK", b"acgt\n"]
JSON = [b'{"text":"a"}', b'{"text":"\xc3\xa9 b"}', b"{", b'{"text": 1}', b"yyyyyyyyyyyyyyyyyyyyyyyyyyyyy"]


@st.composite
def texts_and_cuts(draw):
    pieces = draw(st.sampled_from([PIECES, PIECES + JSON, PIECES + FASTA, JSON + [b"\n", b"\r\n"]]))
    data = b"".join(draw(st.lists(st.sampled_from(pieces), max_size=60)))
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=6))
    return data, sorted([0, *cuts, len(data)])


@settings(max_examples=400, deadline=None)
@given(texts_and_cuts(), st.sampled_from(["jsonl", "fasta", "blank", "line", "---"]), st.sampled_from([3, 24, 1 << 20]))
def test_the_ranges_of_any_cut_are_the_whole(tmp_path_factory, drawn, how, max_bytes):
    data, cuts = drawn
    kind = how if how in ("jsonl", "fasta") else "txt"
    path = tmp_path_factory.getbasetemp() / f"ranges.{kind}"
    path.write_bytes(data)
    options = Options(separator="blank" if how == kind else how)
    source, cache = SourceInput("", str(path), kind), Cache(path, 0)
    whole = RowReader(source, 0, len(data), options, cache, max_bytes)
    expected = list(whole)
    rows, lines, read_bytes = [], 0, 0
    for first, last in itertools.pairwise(cuts):
        part = RowReader(source, first, last, options, cache, max_bytes)
        rows += [row._replace(line=row.line + lines) for row in part]
        lines += part.lines
        read_bytes += part.bytes_read
        assert part.text_bytes == part.bytes_read
    assert rows == expected
    assert lines == whole.lines == data.count(b"\n") + bool(data and not data.endswith(b"\n"))
    assert read_bytes == len(data)
    if how == "jsonl" and len(cuts) > 2:
        starts = [0] + [index + 1 for index, byte in enumerate(data[:-1]) if byte == 10]
        assert part.lines == sum(cuts[-2] <= start for start in starts if data)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60), st.sampled_from(["blank", "line", "---", "file"]))
def test_txt_against_a_plain_implementation(tmp_path_factory, pieces, separator):
    data = b"".join(pieces)
    path = tmp_path_factory.getbasetemp() / "plain.txt"
    path.write_bytes(data)
    documents: list[list[bytes]] = [[]]
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = line.removesuffix(b"\r")
        if not {"blank": line.strip(), "line": False, "file": True}.get(separator, line != separator.encode()):
            documents += [[line], []] if separator == "line" else [[]]
        else:
            documents[-1].append(line)
    expected = [b"\n".join(lines) for lines in documents if b"".join(lines).strip()]
    rows = list(open_all(path, Options(separator=separator)))
    assert len(rows) == len(expected)
    for row, document in zip(rows, expected, strict=True):
        if row.reason:
            with pytest.raises(UnicodeDecodeError):
                document.decode()
        else:
            assert row.text.rstrip("\n") == document.decode().rstrip("\n")


def test_digest_is_of_the_content_alone(tmp_path):
    big = random.Random(0).randbytes(3 << 20)
    digests = set()
    for number, data in enumerate([b"a", b"b", big, big[:-1] + b"x", b"x" + big[1:]]):
        paths = [tmp_path / f"{name}-{number}.txt" for name in ("given", "copy")]
        for path in paths:
            path.write_bytes(data)
        given, copy = (examine(source, Cache(tmp_path / "cache", 0)) for source in find_inputs(paths))
        assert given == copy
        assert (given.bytes, given.unit_bytes) == (len(data), None)
        digests.add(given.digest)
    assert len(digests) == 5


def test_compressed_files_and_whole_files_are_one_unit(tmp_path):
    path = write(tmp_path / "a.txt.gz", b"abc")
    (source,) = find_inputs([path])
    cache = Cache(tmp_path / "cache", 0)
    assert examine(source, cache).unit_bytes == (path.stat().st_size,)
    assert list(RowReader(source, 0, 0, Options(), cache)) == list(RowReader(source, 1, 1, Options(), cache)) == []
    (source,) = find_inputs([write(tmp_path / "a.txt", b"abc")])
    assert examine(source, cache, Options(separator="file")).unit_bytes == (3,)


def test_nothing_heavy_is_imported_until_needed():
    code = "import sys, data_prep.sources; print({'pyarrow', 'fsspec', 'datasets', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
