"""Error messages about unusable files: one line of at most 300 characters for any path and content."""

import pytest

from data_prep.common.errors import MAX_MESSAGE, MissingDataSet, UnusableInput, UserError

LONG = "/data/" + "folder/" * 60 + "shard.tar"


def test_a_long_path_loses_its_middle_and_the_advice_stays():
    text = str(UnusableInput(f"{LONG} is damaged; restore it from {LONG}."))
    assert len(text) <= MAX_MESSAGE
    assert text.startswith("/data/folder/")
    assert text.count("...") == 2
    assert " is damaged; restore it from " in text
    assert text.endswith("shard.tar.")


def test_a_message_of_several_lines_or_long_advice_is_kept():
    assert str(UserError(f"{LONG}\n{LONG}")) == f"{LONG}\n{LONG}"
    assert str(UserError("word " * 100)) == "word " * 100
    assert len(str(UserError(f"{LONG} cannot be read; restore it"))) <= MAX_MESSAGE


@pytest.mark.parametrize("text", ["short", "x" * MAX_MESSAGE])
def test_a_message_that_fits_is_unchanged(text):
    assert str(UnusableInput(text)) == text


@pytest.mark.parametrize("text", ["a\0b\nc\x1b[31m", "word " * 500, "x" * 10_000_000, "", " " * 1000, "é" * 301])
def test_any_text_becomes_one_short_line(text):
    found = str(UnusableInput(text))
    assert len(found) <= MAX_MESSAGE
    assert found.isprintable()
    assert str(MissingDataSet(text)).isprintable()
