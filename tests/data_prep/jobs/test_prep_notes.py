"""Notes of `prep run` and `prep merge` about documents and shards."""

import json
import shlex
from dataclasses import replace

import pytest

from data_prep.common.errors import UserError
from data_prep.jobs import PreparationSettings, Workers, merge_tasks, plan_only
from data_prep.jobs.task_worker import record_path
from data_prep.sources import Options
from tests.support.prep import jsonl, prepare_files, request

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
