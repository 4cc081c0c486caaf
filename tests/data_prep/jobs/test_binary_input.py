"""Binary input files: the message names the file, and what to do."""

import gzip

import pytest

from data_prep.tokenizer import train_tokenizer
from tests.support.in_process import command
from tests.support.prep import texts

BINARY = b"\x7fELF\x02\x01\x01\0\0\0\xff\xfe\xd8" * 200
ADVICE = "line 1: the file is binary, not UTF-8 text: give a text file, or take it out of the input"


@pytest.mark.parametrize("name", ["program.txt", "program.jsonl", "program.txt.gz"])
def test_a_tokenizer_on_a_binary_file(tmp_path, capsys, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(BINARY) if name.endswith(".gz") else BINARY)
    ended = command(capsys, "tokenizer", "train", "--input", path, "--out", tmp_path / "tok")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"error: The input has no text: {path} {ADVICE}.\n"
    assert not (tmp_path / "tok").exists()


def test_a_preparation_of_a_binary_file(tmp_path, capsys):
    train_tokenizer(texts(0, 50), "wordpiece", 100, tmp_path / "tok")
    (tmp_path / "program.txt").write_bytes(BINARY)
    words = ["--input", tmp_path / "program.txt", "--tokenizer", tmp_path / "tok", "--out", tmp_path / "out"]
    ended = command(capsys, "prep", "run", *words, "--workers", "1")
    assert (ended.code, ended.out) == (1, "")
    assert f"program.txt {ADVICE}" in ended.err
