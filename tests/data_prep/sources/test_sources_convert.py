"""Unsupported input files: the message shows a command that converts them, and the command works."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.common.errors import UserError
from data_prep.sources import find_inputs
from data_prep.sources.resolve_inputs import how_to_convert


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a b.docx", "pandoc 'a b.docx' -t plain --wrap=none -o 'a b'.txt"),
        ("book.pdf", "pip install pymupdf && pymupdf gettext -mode simple book.pdf"),
        ("a.txt.xz", "xz -dc a.txt.xz | gzip > a.txt.gz"),
        ("a.jsonl.bz2", "bzip2 -dc a.jsonl.bz2 | gzip > a.jsonl.gz"),
        ("a.tar.gz", "tar -xf a.tar.gz"),
        ("a.ndjson", "mv a.ndjson a.jsonl"),
        ("A.TXT", "mv A.TXT A.txt"),
        ("README", "mv README README.txt"),
    ],
)
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


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("docs", "No input file in the folder docs, but files of other types, such as a.pdf: .pdf is not"),
        ("none", "No input file in the folder none: it is empty. Name files of text, or a folder with some."),
        ("text.jsnl", "No input file at text.jsnl (working directory: {cwd}). Did you mean text.jsonl?"),
        ("there/text.jsonl", "No input file at there/text.jsonl (working directory: {cwd}). Name a file, a folder,"),
        ("*.parquet", "No input file at *.parquet (working directory: {cwd})."),
        ("x.doc", "x.doc: .doc is not supported. Inputs end in .jsonl, .txt, .fasta or .fa (also with"),
    ],
)
def test_no_input(value, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("docs/a.pdf", "docs/b.html", "none/.hidden", "text.jsonl", "x.doc"):
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
