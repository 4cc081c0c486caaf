"""Bad text and repeated tasks: unreadable rows are counted and named, other rows are used, no row is used twice."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from data_prep.format import Dataset
from data_prep.inspection import verify_data_set
from data_prep.jobs import PreparationSettings, Workers, merge_tasks, plan_only, run_tasks, unfinished_stages
from data_prep.jobs.preparation_plan import read_plan
from tests.support.forked import ROOT
from tests.support.in_process import command, refused
from tests.support.prep import jsonl, prepare_files, request, texts, tree


def bad_text(folder: Path) -> Path:
    """A corpus with everything wrong that text can have; 400 documents of it are sound."""
    folder.mkdir()
    good = jsonl(texts(0, 100)).splitlines()
    rows = [*good[:50], b'{"text": "\xff\xfe"}', b'{"text": "nul \\u0000 here"}', b'{"text": ""}', b'{"text": " \\n"}']
    rows += [b"{broken", b'{"text": "' + b"long " * 14_000_000 + b'"}', b'{"body": "no text"}', b'{"text": 3}']
    rows += good[50:]
    (folder / "a.jsonl").write_bytes(b"\n".join(rows))
    (folder / "b.txt").write_bytes(b"\n\n".join([*(text.encode() for text in texts(1, 100)), b"bad \xff utf-8"]))
    for name, compress in (("c.jsonl.gz", gzip.compress), ("d.jsonl.zst", zstandard.compress)):
        whole = jsonl(texts(2, 100))
        (folder / name).write_bytes(compress(whole) + compress(jsonl(texts(3, 3000)))[:-100])
    return folder


def test_bad_text_is_counted_and_named_and_the_rest_goes_on(tmp_path, tokenizer):
    corpus, out = bad_text(tmp_path / "corpus"), tmp_path / "out"
    run = ["prep", "run", "--input", corpus, "--tokenizer", tokenizer, "--workers", "1", "--task-mb", "16"]
    result = command(*run, "--out", out, "--allow-unreadable", "1")
    assert result.code == 0, result.err
    a, b, c, d = Dataset(out).manifest.sources
    assert (a.documents, a.left_out) == (101, {"empty": 2, "unreadable": 5})  # NUL is legal text
    assert (b.documents, b.left_out) == (100, {"unreadable": 1})
    for source in (c, d):
        assert 100 <= source.documents < 3100
        assert source.left_out == {"unreadable": 1}
    found = [(row["file"], row["line"], row["reason"]) for row in map(json.loads, (out / "quarantine.jsonl").open())]
    assert [(file, line) for file, line, _ in found[:5]] == [("a.jsonl", line) for line in (51, 55, 56, 57, 58)]
    for words, (*_, reason) in zip(["", "invalid JSON", "longer than", "missing", "not a string"], found, strict=False):
        assert words in reason
    assert (found[5][:2], "invalid UTF-8" in found[5][2]) == (("b.txt", 201), True)
    assert all("damaged or truncated" in reason for *_, reason in found[6:])
    assert list(verify_data_set(out)) == []


def test_a_task_done_twice_at_once_and_again_gives_the_same_bytes(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 3000)) + b"{broken\n")
    settings = PreparationSettings(block_tokens=2000, shard_bytes=10_000, valid_fraction=0.1)
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "one", 1, settings, task_bytes=100_000)
    out = tmp_path / "twice"
    plan_only(request([tmp_path / "a.jsonl"], tokenizer, out, settings, task_bytes=100_000))
    tasks = [str(task) for task in range(len(read_plan(out).tasks))]
    command = [sys.executable, "-m", "launchers.cli", "prep", "task", str(out), *tasks, "--workers", "1"]
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    run_tasks("task", out, [0, 1], Workers(1))
    merge_tasks(out, Workers(1))
    assert tree(out) == tree(tmp_path / "one")


def test_a_damaged_task_is_named_and_done_again(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 1000)))
    out = tmp_path / "out"
    prepare_files([tmp_path / "a.jsonl"], tokenizer, out, 1, task_bytes=20_000)
    reference = tree(out)
    shard = out / "shards/00001-00000.tar"
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    for again in (0, 1, 0):  # a rerun reads existing files
        assert prepare_files([tmp_path / "a.jsonl"], tokenizer, out, 1, task_bytes=20_000).new_tasks == again
        assert tree(out) == reference
        if not again:
            shard.write_bytes(data)
    assert "1 of" in (refusal := refused("prep", "merge", out, "--workers", "1"))
    assert "are not finished: 1." in refusal
    assert command("prep", "task", out, "0", "1").code == 0
    assert command("prep", "merge", out).code == 0
    assert tree(out) == reference


def test_a_data_set_that_lost_a_file_or_has_a_bad_index_is_not_finished(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 300)))
    out = tmp_path / "out"
    prepare_files([tmp_path / "a.jsonl"], tokenizer, out, 1)
    assert unfinished_stages(out) == {}
    for name in ("00000-00000.tar", "00000-00000.index"):
        path = out / "shards" / name
        data = path.read_bytes()
        altered = data[:-1] + bytes([data[-1] ^ 1])
        for damaged in (data[:-1], altered) if path.suffix == ".index" else (data[:-1],):
            path.write_bytes(damaged)
            assert unfinished_stages(out) == {"merge": {}}
        path.write_bytes(data)
    assert unfinished_stages(out) == {}


@pytest.mark.parametrize("stage", ["scan", "task"])
def test_one_failing_task_does_not_keep_others_from_being_done(tmp_path, tokenizer, stage):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(texts(0, 10)))
    out = tmp_path / "out"
    settings = PreparationSettings(deduplicate="exact" if stage == "scan" else "none")
    plan_only(request([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tokenizer, out, settings))
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(1, 10)))
    refusal = refused("prep", "task", out, "0", "1", "--stage", stage, "--workers", "1")
    assert "1 of 2 tasks failed, the first being 0" in refusal
    assert "a.jsonl has changed since it was planned" in refusal
    records = out / "prep" / ("scan" if stage == "scan" else "tasks")
    assert [path.name for path in records.glob("*.json")] == ["00001.json"]
