"""Normalization and filters of documents, and a filter that is added from outside."""

import json
import re
import sys
from collections.abc import Iterator

import pytest

from data_prep.cleaning import Cleaning, known_filters
from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.jobs import unfinished_stages
from data_prep.tokenizer import train_tokenizer
from tests.support.in_process import command, refused
from tests.support.prep import jsonl, texts

DECOMPOSED, REPEATING = "e\u0301 \ufb01ne \u2460", "the same line\n" * 50
DOCUMENTS = [*texts(0, 60), "x7"]


@pytest.mark.parametrize("cleaning, text, cleaned, reason", [
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
])  # fmt: skip
def test_the_first_filter_that_applies_to_the_normalized_text_gives_the_reason(cleaning, text, cleaned, reason):
    assert cleaning.clean([text]) == ([cleaned], [reason])
    ordinary = "a"
    assert cleaning.clean([ordinary, text])[1][1] == reason, "neighbours do not matter"
    assert cleaning.clean([]) == ([], [])


@pytest.mark.parametrize("normalize, filters, message", [
    ("nfd", [], "Unknown normalization 'nfd'; choose none, nfc or nfkc."),
    ("none", ["character=3-"], "--filter character=3-: there is no filter 'character'. Did you mean characters?"),
    ("none", ["x"], "--filter x: there is no filter 'x'. The filters are characters=MIN-MAX, repetitive."),
    ("none", ["repetitive=3"], "--filter repetitive=3: it takes no value; leave it out."),
    ("none", ["characters"], "--filter characters: give MIN-MAX, MIN- or -MAX, as 100-20000."),
    ("none", ["characters=-"], "--filter characters=-: give MIN-MAX, MIN- or -MAX, as 100-20000."),
    ("none", ["characters=5-4"], "--filter characters=5-4: no document has that; give a MAX of at least 5."),
    ("none", ["characters=-0"], "--filter characters=-0: no document has that; give a MAX of at least 1."),
    ("none", ["characters=1-", "characters=-9"], "One filter is given twice: characters=1-, characters=-9. Give"),
])  # fmt: skip
def test_unusable_settings_are_refused(normalize, filters, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        Cleaning(normalize, tuple(filters))


OWN = """
class LastWord:
    def __init__(self, digits):
        self.digits = digits
        self.calls = 0

    def keep(self, texts):
        texts[:] = [text.replace("carolyn", "caroline") for text in texts]
        return ["digit" if set(self.digits) & set(text.split()[-1]) else None for text in texts]


class Chance(LastWord):
    def keep(self, texts):
        self.calls += 1
        return ["chance" if self.calls > 1 else None for text in texts]


class Fails(LastWord):
    def keep(self, texts):
        return texts[0] / 0


class Short(LastWord):
    def keep(self, texts):
        return []
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Iterator[str]:
    """The import path of a module with filters, in a folder of PYTHONPATH, which worker processes have too."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_filters.py").write_text(OWN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    monkeypatch.syspath_prepend(tmp_path / "own")
    yield "own_filters"
    sys.modules.pop("own_filters", None)


def test_two_filters_with_one_name_are_refused(monkeypatch):
    monkeypatch.setattr(known_filters()["repetitive"], "name", "characters")
    with pytest.raises(ValueError, match="two filters have one name"):
        known_filters()


@pytest.fixture
def prepared_run(tmp_path) -> list[object]:
    """The command that prepares DOCUMENTS."""
    (tmp_path / "a.jsonl").write_bytes(jsonl(DOCUMENTS))
    train_tokenizer(DOCUMENTS, "wordpiece", 120, tmp_path / "tok")
    run = ["prep", "run", "--workers", "1", "--input", tmp_path / "a.jsonl", "--tokenizer", tmp_path / "tok"]
    return [*run, "--out", tmp_path / "out", "--filter", "characters=3-"]


def test_a_filter_by_import_path_has_counts_samples_and_plan(tmp_path, own, prepared_run):
    out, option = tmp_path / "out", f'{own}:LastWord={{"digits": "37"}}'
    ended = command(*prepared_run, "--filter", option)
    dropped = [text.replace("carolyn", "caroline") for text in DOCUMENTS[:-1] if set("37") & set(text.split()[-1])]
    kept = [text for text in DOCUMENTS[:-1] if not set("37") & set(text.split()[-1])]
    changed = sum("carolyn" in text for text in kept)
    left_out = {"LastWord: digit": len(dropped), "short": 1}
    assert f"left out: {len(dropped)} LastWord: digit, 1 short" in ended.err, ended.err
    assert changed
    assert f"filters changed the text of {changed} documents that they kept" in ended.err
    manifest = Dataset(out).manifest
    assert (manifest.left_out(), manifest.totals.documents) == (left_out, len(kept))
    place = next(place for place, text in enumerate(kept) if "carolyn" in text)
    assert "caroline" in command("prep", "show", out, str(place)).out
    info = json.loads(command("prep", "info", out, "--json").out)
    assert info["left_out"] == left_out
    assert info["left_out_samples"].pop("short") == ["x7"]
    (samples,) = info["left_out_samples"].values()
    assert len(samples) == 3
    assert set(samples) <= {text[:200] for text in dropped}
    assert "LastWord: digit" in command("prep", "info", out).out

    assert "already finished" in command(*prepared_run, "--filter", option).out
    said = refused(*prepared_run, "--filter", option.replace("37", "5"))
    assert f"the command has --filter characters=3- --filter {own}:LastWord@" in said


@pytest.mark.parametrize("cut", [["--task-mb", "0.001", "--workers", "2"], ["--deduplicate", "near"]])
def test_samples_and_shards_are_the_same_for_any_number_of_tasks_and_workers(tmp_path, own, prepared_run, cut):
    option = f'{own}:LastWord={{"digits": "37"}}'
    assert command(*prepared_run, "--filter", option).code == 0
    again = [tmp_path / "again" if value == tmp_path / "out" else value for value in prepared_run]
    assert command(*again, *cut, "--filter", option).code == 0
    assert Dataset(tmp_path / "again").left_out_samples == Dataset(tmp_path / "out").left_out_samples


def test_code_from_outside_runs_only_if_it_is_named_again(tmp_path, own, prepared_run):
    out, option = tmp_path / "out", f'{own}:LastWord={{"digits": "37"}}'
    assert command(*prepared_run[:2], *prepared_run[4:], "--filter", option, "--plan-only").code == 0
    for name in (own, "launchers"):  # reading the plan imports nothing
        sys.modules.pop(own, None)
        for arguments in (["prep", "task", out, "0"], ["prep", "task", out, "0", "--filter", f"{name}:LastWord"]):
            assert f"name them: --filter '{option}'" in refused(*arguments)
        with pytest.raises(UserError, match="name them: --filter"):
            unfinished_stages(out)
        assert own not in sys.modules
    other = ["--workers", "1", "--filter", option, "--filter", "repetitive"]
    assert "The plan has no --filter repetitive." in refused("prep", "task", out, "0", *other)
    assert command("prep", "task", out, "0", "--workers", "1", "--filter", option).code == 0
    assert command("prep", "merge", out, "--workers", "1").code == 0


def test_a_changed_filter_is_refused(tmp_path, own, prepared_run):
    out, option = tmp_path / "out", f'{own}:LastWord={{"digits": "37"}}'
    assert command(*prepared_run[:2], *prepared_run[4:], "--filter", option, "--plan-only").code == 0
    with (tmp_path / "own" / "own_filters.py").open("a") as file:
        file.write("# changed\n")
    sys.modules.pop(own)
    assert "Restore its version" in refused("prep", "task", out, "0", "--filter", option)
    assert "was prepared with" in refused(*prepared_run, "--filter", option)


@pytest.mark.parametrize("name, message", [
    ("no_such_module:X", "cannot be loaded (ModuleNotFoundError: No module named 'no_such_module')"),
    ("own_filters:X", "cannot be loaded (AttributeError"),
    ("own_filters:LastWord", "cannot be loaded (TypeError"),
    ("own_filters:LastWord=[1]", "give its arguments as JSON"),
    ("own_filters:LastWord=x", "give its arguments as JSON"),
    ('own_filters:Chance={"digits": ""}', "gives the same texts another result"),
    ('own_filters:Fails={"digits": ""}', "failed (TypeError"),
    ('own_filters:Short={"digits": ""}', "keep(texts) must return a reason or None for each text"),
])  # fmt: skip
@pytest.mark.usefixtures("own")
def test_unusable_imported_filters_are_refused(name, message):
    with pytest.raises(UserError, match=re.escape(message)):
        Cleaning(filters=(name,)).with_versions().clean(["a b"])
