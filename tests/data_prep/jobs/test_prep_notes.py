"""Notes of `prep run` and `prep merge` about documents and shards, and the bytes of the text in data sets."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.common.errors import DamagedData, UserError
from data_prep.format import Dataset
from data_prep.inspection import summary
from data_prep.jobs import PreparationSettings, Workers, merge_tasks, plan_only
from data_prep.jobs.preparation_plan import read_plan
from data_prep.jobs.task_worker import record_path
from data_prep.sources import Options
from tests.support.datasets import edit_manifest
from tests.support.in_process import command
from tests.support.prep import jsonl, prepare_files, request, texts

LONG = " ".join(["blades"] * 40)


def notes(paths, tokenizer, out, separator="blank", **more) -> list[str]:
    settings = PreparationSettings(reading=Options(separator=separator))
    return prepare_files(paths, tokenizer, out, 1, settings, **more).notes


def test_a_text_file_s_split_is_told_with_a_warning_for_short_documents(tmp_path, tokenizer):
    (tmp_path / "novel.txt").write_text("\n\n".join(["the blades", *[LONG] * 3]))
    split, warning = notes([tmp_path / "novel.txt"], tokenizer, tmp_path / "out")
    assert split == "novel.txt: 4 documents, split at empty lines (--separator blank)"
    few, advice = warning.split(". ", 1)
    assert few == "warning: 1 of 4 documents have fewer than 20 tokens"
    assert advice == "If each file is one text, prepare again with --separator file and another --out."
    with Workers(1) as workers:  # as the last piece of an array, from the records alone
        assert merge_tasks(tmp_path / "out", workers).notes == [split, warning]


@pytest.mark.parametrize(
    "separator, how",
    [("line", "one document a line"), ("file", "one document a file"), ("***", "split at lines of this text")],
)
def test_other_separators(tmp_path, tokenizer, separator, how):
    (tmp_path / "novel.txt").write_text(f"{LONG}\n***\n{LONG}\n")
    told = next(note for note in notes([tmp_path / "novel.txt"], tokenizer, tmp_path / "out", separator) if how in note)
    assert f"(--separator {shlex.quote(separator)})" in told


def test_no_warning_without_short_documents_and_none_for_whole_files(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n\n".join(["the blades", *[LONG] * 4]))
    assert len(notes([tmp_path / "a.txt"], tokenizer, tmp_path / "fifth")) == 1
    (tmp_path / "b.txt").write_text("the blades")
    (whole,) = notes([tmp_path / "b.txt"], tokenizer, tmp_path / "whole", "file")
    assert whole == "b.txt: 1 document, one document a file (--separator file)"
    (tmp_path / "c.jsonl").write_bytes(jsonl(["the blades"] * 4))
    assert notes([tmp_path / "c.jsonl"], tokenizer, tmp_path / "rows") == []


def test_several_files_and_tasks_are_counted_together_also_after_an_interruption(tmp_path, tokenizer):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(["the blades", LONG] * 30))
    told = notes([tmp_path / "a.txt", tmp_path / "b.txt"], tokenizer, tmp_path / "out", task_bytes=2000)
    assert told[0] == "2 text files: 120 documents, split at empty lines (--separator blank)"
    assert told[1].startswith("warning: 60 of 120 documents have fewer than 20 tokens.")
    record_path(tmp_path / "out", 1).unlink()
    assert notes([tmp_path / "a.txt", tmp_path / "b.txt"], tokenizer, tmp_path / "out", task_bytes=2000) == told
    for task, cut in ((0, 1), (1, 2)):  # as if documents had more than 64 MiB
        path = record_path(tmp_path / "out", task)
        record = json.loads(path.read_text())
        assert record["cut_documents"] == 0
        path.write_text(json.dumps(record | {"cut_documents": cut}))
    with Workers(1) as workers:
        assert "3 documents of more than 64 MiB were cut." in merge_tasks(tmp_path / "out", workers).notes


@pytest.mark.parametrize("unknown, message", [(0, ""), (25, "warning"), (50, "refused")])
def test_text_that_the_tokenizer_cannot_spell(tmp_path, tokenizer, unknown, message):
    """Unknown tokens of WordPiece, for a sample when the plan is made."""
    (tmp_path / "a.jsonl").write_bytes(jsonl([f"{LONG} Ωδή"] * unknown + [LONG] * (100 - unknown)))
    (tmp_path / "b.jsonl").write_bytes(jsonl(["Ωδή blades"]))
    asked = request([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", allow_unknown=False)
    words = f"The tokenizer cannot spell parts of the text, as 'Ωδή': {unknown / (4000 + unknown):.1%} of the tokens"
    if message == "refused":
        big = request([tmp_path / "b.jsonl"], tokenizer, tmp_path / "out")
        with pytest.raises(UserError, match=r"33.3% of the characters are lost.* or write --allow-unknown"):
            plan_only(big)
        assert not (tmp_path / "out/prep/plan.json").exists()
        _, told = plan_only(replace(big, allow_unknown=True))
        assert told[0].startswith("warning: The tokenizer cannot spell")
        return
    _, told = plan_only(asked)
    assert [note.startswith(f"warning: {words}") for note in told] == [True] * (message == "warning")
    assert plan_only(asked)[1] == [], "the same inputs are measured once"


# Bytes of the text, counted from the input


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
