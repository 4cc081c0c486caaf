"""Bytes of the text in data sets: equal to those that are counted from the input."""

import json
import re
from pathlib import Path

import pytest

from data_prep.common.errors import DamagedData
from data_prep.format import Dataset
from data_prep.inspection import summary
from data_prep.jobs.preparation_plan import read_plan
from data_prep.jobs.task_worker import record_path
from tests.support.datasets import edit_manifest
from tests.support.in_process import command
from tests.support.prep import jsonl, prepare_files, texts


def counted(documents) -> int:
    return sum(len(text.encode()) for text in documents)


def found(folder: Path) -> int | None:
    return Dataset(folder).manifest.totals.text_bytes


@pytest.mark.parametrize("task_bytes", [None, 3000])
def test_totals_of_one_task_and_of_several(tmp_path, tokenizer, task_bytes):
    documents = [text.replace(" ", "\u2003é\u00a0", 3) + "\n " for text in texts(1, 200)]
    (tmp_path / "a.jsonl").write_bytes(jsonl([*documents, "", " "]))
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", task_bytes=task_bytes)
    assert (len(read_plan(tmp_path / "out").tasks) > 5) == bool(task_bytes)
    assert found(tmp_path / "out") == counted(documents)
    assert summary(Dataset(tmp_path / "out"))["text_bytes"] == counted(documents)
    record_path(tmp_path / "out", 0).unlink()
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", task_bytes=task_bytes)
    assert found(tmp_path / "out") == counted(documents)


def test_a_manifest_without_a_count_and_one_whose_totals_are_not_the_sums(tmp_path, tokenizer):
    """The first as of earlier versions of the program: the fingerprint is the same."""
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 30)))
    out = tmp_path / "out"
    prepare_files([tmp_path / "a.jsonl"], tokenizer, out)
    fingerprint = Dataset(out).manifest.fingerprint
    manifest = json.loads((out / "manifest.json").read_bytes())
    totals, (source,) = manifest["totals"], manifest["sources"]
    edit_manifest(out, totals=totals | {"text_bytes": totals["text_bytes"] + 1})
    with pytest.raises(DamagedData, match="the inputs' text_bytes do not add up"):
        Dataset(out)
    del totals["text_bytes"]
    early = {"words": 7}  # as other early versions counted
    edit_manifest(out, totals=totals | early, sources=[source | early | {"text_bytes": 0}])
    assert (found(out), Dataset(out).manifest.fingerprint) == (None, fingerprint)
    assert re.search(r"bytes of the text +not counted", command("prep", "info", out).out)
