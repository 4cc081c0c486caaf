"""Parquet files and data sets of the Hub: documents by units; damaged and unsuitable tables.

The message for an unsupported input file shows a command that converts it, and the command works.
"""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.common.errors import UserError
from data_prep.sources import Options, RowReader, SourceInput, SourceRow, examine, find_inputs
from data_prep.sources.parquet_tables import batch_rows
from data_prep.sources.resolve_inputs import how_to_convert
from data_prep.storage import Cache
from tests.support.forked import ROOT

TEXTS = [f"document {index} é " * (index % 7) for index in range(100)]


def read(value, options=None, cuts=None, cache=None, **more):
    """Rows of an input read unit by unit, with lines counted through, after checking each range's counts."""
    options, cache = options or Options(), cache or Cache("/nonexistent", 0)
    (source,) = find_inputs([value])
    units = examine(source, cache, options).unit_bytes
    rows, lines = [], 0
    cuts = cuts or range(len(units) + 1)
    for first, last in itertools.pairwise(cuts):
        part = RowReader(source, first, last, options, cache, **more)
        rows += [row._replace(line=row.line + lines) for row in part]
        lines += part.lines
        if not source.location.startswith("hub:"):
            assert part.bytes_read == sum(units[first:last])
    return rows


EXPECTED = [SourceRow(line, text) for line, text in enumerate(TEXTS, 1)]


def test_units_together_are_the_whole(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS, "n": range(100)}), path, row_group_size=30)
    assert read(path) == read(path, cuts=[0, 0, 3, 4]) == read(path, cuts=[0, 4]) == EXPECTED
    (source,) = find_inputs([path])
    examined = examine(source, Cache(tmp_path, 0))
    assert len(examined.unit_bytes) == 4
    assert examined.bytes == path.stat().st_size
    rows = RowReader(source, 1, 4, Options(), Cache(tmp_path, 0))
    assert list(rows) == [row._replace(line=row.line - 30) for row in EXPECTED[30:]]
    assert rows.text_bytes == len("".join(TEXTS[30:]).encode())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_types_nulls_ids_and_nested_fields(tmp_path, kind):
    inner = pa.array(["one", None, "nul \0", "four", "five"]).cast(kind)
    mask = pa.array([False, False, False, True, False])
    nested = pa.StructArray.from_arrays([inner, pa.array(range(5))], ["b", "c"], mask=mask)
    table = pa.table({"x": range(5), "a": nested, "id": pa.array([5, 6, 7, 8, None], pa.uint16())})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    rows = read(path, Options("a.b", "id"))
    assert [row for row in rows if not row.reason] == [SourceRow(1, "one", "", 5), SourceRow(3, "nul \0", "", 7)]
    null, reasons = "field 'a.b' is null", [(row.line, row.reason) for row in rows if row.reason]
    assert reasons == [(2, null), (4, null), (5, "id field 'id' is null")]
    literal = table.append_column("a.b", pa.array(["literal"] * 5))
    pq.write_table(literal, path)
    assert {row.text for row in read(path, Options("a.b"))} == {"literal"}


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int8(), pa.binary())]
)
def test_strings_of_other_programs_are_read(tmp_path, kind):
    texts = pa.array([b"one", b"\xc3\xa9", None], pa.binary())
    column = texts.cast(pa.string()).cast(kind) if kind == pa.string_view() else texts.cast(kind)
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    rows = [(row.text, row.reason) for row in read(tmp_path / "a.parquet")]
    assert rows == [("one", ""), ("é", ""), ("", "field 'text' is null")]
    pq.write_table(pa.table({"text": ["a", "b", "c"], "id": column}), tmp_path / "a.parquet")
    assert [row.id for row in read(tmp_path / "a.parquet", Options(id_field="id"))] == ["one", "é", None]


def test_unfit_columns_are_refused_with_a_sentence(tmp_path):
    table = pa.table({"text": [1, 2], "body": ["a", "b"], "raw": [b"a", b"b"], "f": [1.5, 2.5], "l": [["a"], ["b"]]})
    table = table.append_column("s", [[{"a": 1, "b": "x"}] * 2]).append_column("n", [[None, None]])
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    for options, words in (
        (Options(), r"'text' of .*a\.\w+ holds int64, not strings"),
        (Options("content"), "no column 'content'; its columns are text, body, raw, f, l, s, n"),
        (Options("l"), "holds list"),
        (Options("s"), r"holds struct.*choose one of its fields, such as s\.b"),
        (Options("n"), "holds null"),
        (Options("body.x"), r"no column 'body\.x'"),
        (Options("body", "f"), "'f' of .* holds double, not strings or integers"),
        (Options("body", "nope"), "no column 'nope'"),
    ):
        with pytest.raises(UserError, match=words):
            read(path, options)
        (source,) = find_inputs([path])
        with pytest.raises(UserError, match=words):
            list(RowReader(source, 0, 1, options, Cache(tmp_path, 0)))
    assert [row.id for row in read(path, Options("body", "text"))] == [1, 2]


def test_truncated_or_foreign_files_are_refused_with_a_sentence(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=30)
    data = path.read_bytes()
    for size in [0, 3, 50, len(data) // 2, len(data) - 1, len(data) - 8]:
        path.write_bytes(data[:size])
        with pytest.raises(UserError, match=r"a\.parquet is not a whole parquet file"):
            read(path)
    path.write_bytes(b"something else altogether, and long enough to be read as a header" * 10)
    with pytest.raises(UserError, match="is not a whole parquet file"):
        read(path)


def test_a_damaged_row_group_is_a_row_with_a_reason_and_the_rest_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    letters = random.Random(0)
    texts = ["".join(letters.choices("abcdefgh ", k=500)) for _ in range(100)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=25, compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    rows = read(path)
    assert [row.text for row in rows if not row.reason] == texts[:25] + texts[50:]
    (damaged,) = [row for row in rows if row.reason]
    assert (damaged.line, "row group 1 is damaged" in damaged.reason) == (26, True)
    assert rows[-1].line == 100
    assert read(path, cuts=[0, 4]) == rows


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_invalid_utf8_is_a_row_with_a_reason(tmp_path, kind):
    raw = pa.array([b"good", b"bad \xff" + b"x" * 300, None, b"more"])
    column = pa.Array.from_buffers(kind, 4, raw.buffers())
    pq.write_table(pa.table({"text": column, "more": list("abcd")}), tmp_path / "a.parquet")
    rows, by_id = read(tmp_path / "a.parquet"), read(tmp_path / "a.parquet", Options("more", "text"))
    assert [row.text for row in rows] == ["good", "", "", "more"]
    assert [row.id for row in by_id] == ["good", None, None, "more"]
    assert by_id[1].reason == "invalid UTF-8: invalid start byte at byte 4 of id field 'text'"
    assert rows[1].reason == "invalid UTF-8: invalid start byte at byte 4 of the document"
    assert rows[1].bytes >= 70
    assert "null" in rows[2].reason


def test_damaged_offsets_are_a_row_with_a_reason():
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little", signed=True) for n in (0, 5, 1 << 30, 8)))
    bad = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abcdefgh")])
    good = pa.record_batch({"text": ["a", "b"]})
    part = RowReader(SourceInput("", "", "parquet"), 0, 3, Options(), Cache("/nonexistent", 0))
    batches = (good, pa.record_batch({"text": bad}), good)
    rows = [row for batch in batches for row in batch_rows(batch, part, 7)]
    assert [row.text for row in rows] == ["a", "b", "", "a", "b"]
    assert [row.line for row in rows] == [1, 2, 3, 6, 7]
    assert "the 3 table rows from here on are damaged" in rows[2].reason
    assert rows[2].bytes == 21


def test_a_document_over_the_limit(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "é" * 50, "é" * 51, "b"], "other": list("abcd")}), path)
    rows = read(path, max_bytes=100)
    assert [(row.line, row.text) for row in rows] == [(1, "a"), (2, "é" * 50), (3, "é" * 50), (3, "é"), (4, "b")]
    pairs = read(path, options=Options(target_field="other"), max_bytes=100)
    assert [row.text for row in pairs] == ["a", "é" * 50, "", "b"]
    assert "longer than 100 bytes" in pairs[2].reason


def test_save_to_disk(tmp_path):
    data = datasets.Dataset.from_dict({"text": TEXTS})
    for name in ("saved", "50%20x a?b"):
        data.save_to_disk(str(tmp_path / name), num_shards=2)
        assert read(f"hub:{tmp_path}/{name}") == EXPECTED
    (source,) = find_inputs([f"hub:{tmp_path}/saved"])
    examined = examine(source, Cache(tmp_path, 0))
    assert examine(source, Cache(tmp_path, 0)) == examined
    datasets.Dataset.from_dict({"text": TEXTS[::-1]}).save_to_disk(str(tmp_path / "other"))
    assert examine(*find_inputs([f"hub:{tmp_path}/other"]), Cache(tmp_path, 0)).digest != examined.digest
    with pytest.raises(UserError, match=r"\.arrow is not supported\. .*name its folder: --input hub:FOLDER"):
        find_inputs([tmp_path / "saved"])
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "splits"))
    assert read(f"hub:{tmp_path}/splits/train") == EXPECTED
    with pytest.raises(UserError, match="has the splits train, test; choose one with split=NAME"):
        find_inputs([f"hub:{tmp_path}/splits"])


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder laid out like a data set of the Hub: jsonl files in two splits."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    folder = tmp_path / "set"
    folder.mkdir()
    for index in range(3):
        part = [{"text": f"{index} {row}", "id": row, "meta": {"k": f"m{row}"}} for row in range(700)]
        (folder / f"train-{index}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "test-0.jsonl").write_text('{"text": "test", "id": 1, "meta": {"k": "m"}}\n')
    return folder


def test_hub(hub):
    value = f"hub:{hub}?split=train"
    (source,) = find_inputs([f"web={value}"])
    assert (source.source, source.kind) == ("web", "hub")
    assert find_inputs([source.location])[0].location == source.location
    examined = examine(source, Cache(hub, 0))
    assert len(examined.unit_bytes) == 3
    assert sum(examined.unit_bytes) > 0
    assert examine(source, Cache(hub, 0)) == examined
    expected = [f"{index} {row}" for index in range(3) for row in range(700)]
    assert read(value) == [SourceRow(line, text) for line, text in enumerate(expected, 1)]
    assert read(value, Options("meta.k", "id"))[701] == SourceRow(702, "m1", "", 1)
    with pytest.raises(UserError, match="no column 'body'"):
        read(value, Options("body"))


def test_hub_values(hub):
    with pytest.raises(UserError, match="has the splits train, test; choose one with split=NAME"):
        find_inputs([f"hub:{hub}"])
    with pytest.raises(UserError, match="has the splits train, test"):
        find_inputs([f"hub:{hub}?split=dev"])
    with pytest.raises(UserError, match="is not of the form hub:OWNER/NAME"):
        find_inputs([f"hub:{hub}?splitt=train"])
    with pytest.raises(UserError, match=r"cannot be loaded \(.*Available"):
        find_inputs([f"hub:{hub}?name=other&split=train"])
    for index in (1, 2):
        (hub / f"train-{index}.jsonl").unlink()
    (hub / "test-0.jsonl").unlink()
    (source,) = find_inputs([f"hub:{hub}"])
    assert source.location == f"hub:{hub}?split=train"


FLIPS = """
import sys
from pathlib import Path
from data_prep.common.errors import UserError
from data_prep.storage import Cache
from data_prep.sources import Options, RowReader, SourceInput, examine

path, options = Path(sys.argv[1]), Options("text")
source, cache = SourceInput("", str(path), "parquet"), Cache(path.parent / "cache", 0)
valid = path.read_bytes()
for bit in range(0, 8 * len(valid), 3):  # two or three of each byte
    damaged = bytearray(valid)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    try:
        groups = len(examine(source, cache, options).unit_bytes)
        list(RowReader(source, 0, groups, options, cache))
    except UserError as error:
        assert str(error).isprintable() and len(str(error)) <= 300, error
"""


def test_no_flipped_bit_of_a_parquet_file_ends_the_process(tmp_path):
    """pyarrow's C++ code ends it where some metadata is damaged."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path)
    done = subprocess.run([sys.executable, "-c", FLIPS, path], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "command"), [
    ("a b.docx", "pandoc 'a b.docx' -t plain --wrap=none -o 'a b'.txt"),
    ("book.pdf", "pip install pymupdf && pymupdf gettext -mode simple book.pdf"),
    ("a.txt.xz", "xz -dc a.txt.xz | gzip > a.txt.gz"),
    ("a.jsonl.bz2", "bzip2 -dc a.jsonl.bz2 | gzip > a.jsonl.gz"),
    ("a.tar.gz", "tar -xf a.tar.gz"),
    ("a.ndjson", "mv a.ndjson a.jsonl"),
    ("A.TXT", "mv A.TXT A.txt"),
    ("README", "mv README README.txt"),
])  # fmt: skip
def test_commands(name, command):
    assert how_to_convert(name).endswith(f": {command}")


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("t.csv", 'id,text\n1,"Hello, ""you""\nsecond"\n', [{"id": 1, "text": 'Hello, "you"\nsecond'}]),
        ("it's $HOME `x`.tsv", "text\tid\na b\t1\n", [{"text": "a b", "id": 1}]),
        ("list.json", '[{"text": "a"}, {"text": "b"}]', [{"text": "a"}, {"text": "b"}]),
    ],
)
def test_tables_become_inputs(name, content, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    with pytest.raises(UserError, match=r"is not supported\..*: python -c ") as caught:
        find_inputs([name])
    command = str(caught.value).partition(": python ")[2]
    subprocess.run(["sh", "-c", f"{sys.executable} {command}"], check=True)
    (source,) = find_inputs([Path(name).with_suffix(".parquet")])
    table: pa.Table = pq.read_table(source.location)
    assert table.to_pylist() == rows


@pytest.mark.parametrize(("value", "wanted"), [
    ("docs", "No input file in the folder docs, but files of other types, such as a.pdf: .pdf is not"),
    ("none", "No input file in the folder none: it is empty. Name files of text, or a folder with some."),
    ("new-folder/text.jsnl", "text.jsnl (working directory: {cwd}). Did you mean new-folder/text.jsonl?"),
    ("there/text.jsonl", "No input file at there/text.jsonl (working directory: {cwd}). Name a file, a folder,"),
    ("*.parquet", "No input file at *.parquet (working directory: {cwd})."),
    ("x.doc", "x.doc: .doc is not supported. Inputs end in .jsonl, .txt, .fasta or .fa (also with"),
])  # fmt: skip
def test_no_input(value, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("docs/a.pdf", "docs/b.html", "none/.hidden", "new-folder/text.jsonl", "x.doc"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    with pytest.raises(UserError) as caught:
        find_inputs([value])
    assert wanted.format(cwd=tmp_path) in str(caught.value)


def test_messages_of_long_paths_are_short(tmp_path):
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    (folder / "table.csv").touch()
    with pytest.raises(UserError) as caught:
        find_inputs([folder / "table.csv"])
    assert "in its folder: python -c" in str(caught.value)
    assert len(str(caught.value)) < 300
