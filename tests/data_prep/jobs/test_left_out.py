"""What `prep` says and returns when a part of the input cannot be read."""

import json
import os

import datasets
import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from tests.support.in_process import app
from tests.support.prep import jsonl

GOOD = jsonl(["never mind the others " * 10] * 40)


@pytest.fixture
def prep(tokenizer):
    def run(stage, out, *options):
        where = ["--tokenizer", str(tokenizer), "--out", str(out)] if stage == "run" else [str(out)]
        done = CliRunner().invoke(app, ["prep", stage, *where, *map(str, options)])
        assert done.exception is None or isinstance(done.exception, UserError), done.exception
        return done.exit_code, f"{done.output}error: {done.exception}" if done.exception else done.output

    return run


def _in_pieces(prep, out, *options):
    """Exit code and output of `prep merge` after the plan and its tasks."""
    assert prep("run", out, "--plan-only", *options)[0] == 0
    tasks = json.loads((out / "prep/plan.json").read_text())["tasks"]
    assert prep("task", out, *range(len(tasks)), "--workers", 1)[0] == 0
    return prep("merge", out, "--workers", 1)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_more_than_1_percent_of_the_bytes_ends_with_exit_code_1(prep, tmp_path, in_pieces):
    bad = b'{"text": ' + b"7" * 999 + b"}\n"
    (tmp_path / "a.jsonl").write_bytes(GOOD + bad)
    (tmp_path / "b.jsonl").write_bytes(GOOD * 20)
    total = len(GOOD) * 21 + len(bad)
    run = lambda *words: _in_pieces(prep, *words) if in_pieces else prep("run", *words, "--workers", 1)  # noqa: E731
    code, output = run(tmp_path / "few", "--input", tmp_path / "a.jsonl", "--input", tmp_path / "b.jsonl")
    assert (code, f"not read: {len(bad):,} bytes of the input" in output) == (0, True), f"{len(bad) / total:.2%}"
    code, output = run(tmp_path / "many", "--input", tmp_path / "a.jsonl")
    share = len(bad) / (len(GOOD) + len(bad))
    assert code == 1
    assert f"error: {share:.1%} of the bytes of the input were left out ({len(bad):,} of " in output
    assert "a.jsonl line 41: invalid JSON" in output
    assert Dataset(tmp_path / "many").manifest.totals.documents == 40, "the rest is prepared"
    assert json.loads((tmp_path / "many/quarantine.jsonl").read_text())["bytes"] == len(bad)
    code, output = run(tmp_path / "many", "--input", tmp_path / "a.jsonl", "--allow-unreadable", "0.2")
    assert (code, "error" in output) == (0, False)


def test_files_of_a_folder_are_read_through_links_or_counted(prep, tmp_path):
    text, other = tmp_path / "text", tmp_path / "other"
    for folder in (text / "inner", text / ".hidden", other):
        folder.mkdir(parents=True)
    (other / "b.jsonl").write_bytes(GOOD)
    (text / "inner/a.jsonl").write_bytes(GOOD)
    (text / ".hidden/c.jsonl").write_bytes(GOOD)
    (text / "link").symlink_to(other)
    (text / "inner/again").symlink_to(text)
    code, output = prep("run", tmp_path / "whole", "--input", text)
    assert (code, "not read" in output) == (0, False)
    assert [source.name for source in Dataset(tmp_path / "whole").manifest.sources] == ["inner/a.jsonl", "link/b.jsonl"]
    code, output = prep("run", tmp_path / "glob", "--input", f"{text}/*")
    assert (code, Dataset(tmp_path / "glob").manifest.totals.documents) == (0, 80)
    datasets.Dataset.from_dict({"text": ["some little others"] * 500}).save_to_disk(str(text / "saved"))
    (text / "table.csv").write_text("a,b\n")
    learn = ["tokenizer", "train", "--input", str(text), "--out", str(tmp_path / "tok"), "--kind", "characters"]
    assert "files or folders in the input are not read, such as" in CliRunner().invoke(app, learn).output
    inputs = ["--input", text, "--workers", 1]
    code, output = prep("run", text / "out", *inputs)
    assert (code, "% of the bytes of the input were left out" in output) == (1, True)
    assert "files in the input are not read. The largest is " in output
    assert "If save_to_disk wrote it, name its folder: --input hub:FOLDER." in output
    again = prep("run", text / "out", *inputs)
    assert again[0] == 1
    assert again[1].splitlines()[-1] == output.splitlines()[-1], "the files of the output do not count"
    assert _in_pieces(prep, tmp_path / "pieces", "--input", text)[0] == 1
    (text / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    assert "gone.jsonl is a link to a file that does not exist" in prep("run", tmp_path / "gone", *inputs)[1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_refused(prep, tmp_path):
    (tmp_path / "text/inner").mkdir(parents=True)
    (tmp_path / "text/a.jsonl").write_bytes(GOOD)
    (tmp_path / "text/inner").chmod(0)
    assert "Permission denied" in prep("run", tmp_path / "out", "--input", tmp_path / "text")[1]


def test_evaluation_texts_are_compared_in_the_normal_form_of_the_documents(prep, tmp_path):
    text = "\uff4eever mind the \uff4fthers by carolyn wells never mind some little meaning the blades"
    (tmp_path / "a.jsonl").write_bytes(jsonl([text, "some others " * 9]))
    (tmp_path / "eval.txt").write_text(text)
    for form in ("none", "nfkc"):
        options = ["--input", tmp_path / "a.jsonl", "--decontaminate", tmp_path / "eval.txt", "--normalize", form]
        code, said = prep("run", tmp_path / form, *options, "--allow-unknown", "--workers", 1)
        assert code == 0
        assert "left out: 1 contaminated" in said
