"""Words and bytes of the text in data sets: equal to those that are counted from the input."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from data_prep.cleaning import count_words
from data_prep.common.errors import DamagedData
from data_prep.format import Dataset
from data_prep.inspection import summary
from data_prep.jobs import PreparationSettings
from data_prep.jobs.preparation_plan import read_plan
from data_prep.jobs.task_worker import record_path
from data_prep.sources import Options
from tests.support.in_process import command
from tests.support.prep import jsonl, prepare_files, texts


def counts(documents) -> tuple[int, int]:
    return sum(len(text.split()) for text in documents), sum(len(text.encode()) for text in documents)


def found(folder: Path) -> tuple[int | None, int | None]:
    totals = Dataset(folder).manifest.totals
    return totals.words, totals.text_bytes


def test_every_character_is_counted_as_split_counts_it():
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    documents = ["", *(text for c in characters for text in (c, f"{c}a{c}{c}b", f"a{c}é{c}"))]
    words, sizes = count_words(documents)
    assert words.tolist() == [len(text.split()) for text in documents]
    assert sizes.tolist() == [len(text.encode()) for text in documents]


@pytest.mark.parametrize("task_bytes", [None, 3000])
def test_totals_of_one_task_and_of_several(tmp_path, tokenizer, task_bytes):
    documents = [text.replace(" ", "\u2003é\u00a0", 3) + "\n " for text in texts(1, 200)]
    (tmp_path / "a.jsonl").write_bytes(jsonl([*documents, "", " "]))
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", task_bytes=task_bytes)
    assert (len(read_plan(tmp_path / "out").tasks) > 5) == bool(task_bytes)
    assert found(tmp_path / "out") == counts(documents)
    facts = summary(Dataset(tmp_path / "out"))
    assert (facts["text_words"], facts["text_bytes"]) == counts(documents)
    record_path(tmp_path / "out", 0).unlink()
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", task_bytes=task_bytes)
    assert found(tmp_path / "out") == counts(documents)


@pytest.mark.parametrize("field", ["target_field", "wrong_field"])
def test_pairs_and_corrections(tmp_path, tokenizer, field):
    rows = [{"text": f"the curved {text}", "other": f"mind {text}"} for text in texts(2, 20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = PreparationSettings(reading=Options(**{field: "other"}))
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", settings=settings)
    names = ("text", "other") if field == "target_field" else ("text",)
    assert found(tmp_path / "out") == counts([row[name] for row in rows for name in names])


def test_a_data_set_whose_manifest_has_no_counts(tmp_path, tokenizer):
    """As data sets of earlier versions of the program: the fingerprint is the same."""
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 30)))
    out = tmp_path / "out"
    prepare_files([tmp_path / "a.jsonl"], tokenizer, out)
    fingerprint = Dataset(out).manifest.fingerprint
    manifest = json.loads((out / "manifest.json").read_bytes())
    for part in (manifest["totals"], *manifest["sources"]):
        part.pop("words", None)
    del manifest["totals"]["text_bytes"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert (found(out), Dataset(out).manifest.fingerprint) == ((None, None), fingerprint)
    assert re.search(r"words of the text +not counted", command("prep", "info", out).out)


@pytest.mark.parametrize("name", ["words", "text_bytes"])
def test_totals_that_are_not_the_sums_are_refused(tmp_path, tokenizer, name):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 30)))
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out")
    manifest = dataclasses.asdict(Dataset(tmp_path / "out").manifest)
    manifest["totals"][name] += 1
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedData, match=f"the inputs' {name} do not add up"):
        Dataset(tmp_path / "out")
