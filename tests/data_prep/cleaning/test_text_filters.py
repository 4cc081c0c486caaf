"""Normalization and filters of documents, and a filter that is added from outside."""

import gc
import json
import re
from collections.abc import Iterator, Sequence

import pytest

from data_prep.cleaning import Cleaning, TextFilter, filter_forms, known_filters
from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.tokenizer import train_tokenizer
from tests.support.in_process import command
from tests.support.prep import jsonl, texts

DECOMPOSED, REPEATING = "e\u0301 \ufb01ne \u2460", "the same line\n" * 50


@pytest.mark.parametrize(
    "cleaning, text, cleaned, reason",
    [
        (Cleaning(), DECOMPOSED, DECOMPOSED, ""),
        (Cleaning("nfc"), DECOMPOSED, "é \ufb01ne \u2460", ""),
        (Cleaning("nfkc"), DECOMPOSED, "é fine 1", ""),
        (Cleaning("nfkc"), "plain\r\n", "plain\r\n", ""),
        (Cleaning(), "", "", ""),
        *((Cleaning(filters=("characters=3-5",)), "東" * n, "東" * n, r) for n, r in [(2, "short"), (3, ""), (5, "")]),
        (Cleaning(filters=("characters=3-5",)), "x" * 6, "x" * 6, "long"),
        (Cleaning(filters=("characters=-5",)), "", "", ""),
        (Cleaning(filters=("characters=3-",)), "x" * 999, "x" * 999, ""),
        (Cleaning("none", ("characters=3-5",)), "e\u0301" * 3, "e\u0301" * 3, "long"),
        (Cleaning("nfc", ("characters=3-5",)), "e\u0301" * 3, "ééé", ""),
        (Cleaning(filters=("repetitive",)), REPEATING, REPEATING, "repetitive"),
        (Cleaning(filters=("repetitive", "characters=-9")), REPEATING, REPEATING, "long"),
    ],
)
def test_the_first_filter_that_applies_to_the_normalized_text_gives_the_reason(cleaning, text, cleaned, reason):
    assert cleaning.clean([text]) == ([cleaned], [reason])
    ordinary = "a"
    assert cleaning.clean([ordinary, text])[1][1] == reason, "neighbours do not matter"
    assert cleaning.clean([]) == ([], [])


@pytest.mark.parametrize(
    "normalize, filters, message",
    [
        ("nfd", [], "Unknown normalization 'nfd'; choose none, nfc or nfkc."),
        ("none", ["character=3-"], "--filter character=3-: there is no filter 'character'. Did you mean characters?"),
        ("none", ["x"], "--filter x: there is no filter 'x'. The filters are characters=MIN-MAX, repetitive."),
        ("none", ["repetitive=3"], "--filter repetitive=3: it takes no value; leave it out."),
        ("none", ["characters"], "--filter characters: give MIN-MAX, MIN- or -MAX, as 100-20000."),
        ("none", ["characters=-"], "--filter characters=-: give MIN-MAX, MIN- or -MAX, as 100-20000."),
        ("none", ["characters=5-4"], "--filter characters=5-4: no document has that; give a MAX of at least 5."),
        ("none", ["characters=-0"], "--filter characters=-0: no document has that; give a MAX of at least 1."),
        ("none", ["characters=1-", "characters=-9"], "One filter is given twice: characters=1-, characters=-9. Give"),
    ],
)
def test_unusable_settings_are_refused(normalize, filters, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        Cleaning(normalize, tuple(filters))


@pytest.fixture
def last_word() -> Iterator[None]:
    """A filter that this test defines, as a new file in data_prep/cleaning/filters/ would."""

    class LastWord(TextFilter):
        """Documents whose last word has one of DIGITS."""

        name, value, reasons, order = "last-word", "DIGITS", ("last word",), 15

        def __init__(self, value: str) -> None:
            if not value.isdecimal():
                raise ValueError("give digits, as 37")
            self._digits = value

        def reasons_for(self, texts: Sequence[str]) -> list[str]:
            return ["last word" if set(self._digits) & set(text.split()[-1]) else "" for text in texts]

    yield
    del LastWord
    gc.collect()
    assert "last-word" not in known_filters()


def test_two_filters_with_one_name_are_refused(monkeypatch):
    monkeypatch.setattr(known_filters()["repetitive"], "name", "characters")
    with pytest.raises(ValueError, match="two filters have one name"):
        known_filters()


@pytest.mark.usefixtures("last_word")
def test_a_filter_from_outside_has_option_check_counts_and_plan(tmp_path):
    documents = [*texts(0, 60), "x7"]
    (tmp_path / "a.jsonl").write_bytes(jsonl(documents))
    train_tokenizer(documents, "wordpiece", 120, tmp_path / "tok")
    out = tmp_path / "out"
    run = ["prep", "run", "--workers", "1", "--input", tmp_path / "a.jsonl", "--tokenizer", tmp_path / "tok"]
    run += ["--out", out, "--filter", "last-word=37", "--filter", "characters=3-"]
    assert filter_forms() == ["characters=MIN-MAX", "last-word=DIGITS", "repetitive"]
    refused = command(*run[:-3], "last-word=x")
    assert (refused.code, refused.err) == (1, "error: --filter last-word=x: give digits, as 37.\n")
    assert not out.exists()

    ended = command(*run)
    left_out = {"last word": sum(not {"3", "7"}.isdisjoint(text.split()[-1]) for text in documents[:-1]), "short": 1}
    assert (ended.code, f"left out: {left_out['last word']} last word, 1 short" in ended.err) == (0, True), ended.err
    manifest = Dataset(out).manifest
    assert (manifest.left_out(), manifest.totals.documents) == (left_out, len(documents) - sum(left_out.values()))
    assert json.loads(command("prep", "info", out, "--json").out)["left_out"] == left_out

    assert "already finished" in command(*run).out
    message = "prepared with --filter characters=3- --filter last-word=37; the command has --filter last-word=5."
    assert message in command(*run[:-3], "last-word=5").err
