"""Files that a preparation may change and trust: other folders, reruns after kills and mistakes, its inputs."""

import numpy as np
import pytest

from data_prep.common.errors import UserError
from data_prep.jobs import (
    PreparationSettings,
    Workers,
    merge_tasks,
    plan_only,
    run_tasks,
    unfinished_stages,
)
from data_prep.tokenizer import copy_files
from tests.support.in_process import command
from tests.support.prep import jsonl, prepare_files, refused, request, texts, tree


def test_a_corpus_without_documents_removes_only_what_this_run_made(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": " "}')
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no document to keep"):
        prepare_files([tmp_path / "a.jsonl"], tokenizer, out)
    assert list(out.iterdir()) == []
    plan_only(request([tmp_path / "a.jsonl"], tokenizer, out))
    (out / "prep/slurm").mkdir()
    (out / "prep/slurm/7.log").write_text("what the user looks for")
    with pytest.raises(UserError, match="no document to keep"):
        prepare_files([tmp_path / "a.jsonl"], tokenizer, out)
    with pytest.raises(UserError, match="no document to keep"):
        merge_tasks(out, Workers(1))
    assert (out / "prep/slurm/7.log").exists()


def test_folders_of_others_are_left_as_they_are(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": " "}')
    mine = tmp_path / "mine"
    (mine / "prep").mkdir(parents=True)
    (mine / "prep/notes.txt").write_text("years of work")
    before = tree(tmp_path)
    run = ["prep", "run", "--input", tmp_path / "a.jsonl", "--out"]
    assert "it has prep/notes.txt" in refused(*run, mine, "--tokenizer", tokenizer / "tokenizer.json")
    for out in (tmp_path / "a.jsonl/out", tmp_path / "a.jsonl"):
        assert f"{out}: not a directory" in refused(*run, out, "--tokenizer", tokenizer / "tokenizer.json")
    tokenizer_train = ["tokenizer", "train", "--input", tmp_path / "a.jsonl", "--out"]
    assert "a.jsonl/tok: not a directory" in refused(*tokenizer_train, tmp_path / "a.jsonl/tok")
    for work in (lambda out: merge_tasks(out, Workers(1)), lambda out: run_tasks("resolve", out, [], Workers(1))):
        with pytest.raises(UserError, match="typo does not exist"):
            work(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    assert tree(tmp_path) == before


def test_a_folder_of_inputs_may_hold_the_output(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 20)) + b"{broken")
    copy_files(tokenizer, tmp_path / "outside/tok")
    (tmp_path / "outside/tok/vocab.txt").write_text("the words of a tokenizer are no documents")
    out = tmp_path / "out"
    first = prepare_files([tmp_path / "a.jsonl"], tmp_path / "outside/tok", out)
    again = prepare_files([tmp_path / "a.jsonl", out], tmp_path / "outside/tok", out)
    assert (again.new_tasks, again.manifests) == (0, first.manifests)
    with pytest.raises(UserError, match="All inputs lie in"):
        prepare_files([out], tmp_path / "outside/tok", out)


def test_a_refused_command_leaves_the_evaluation_n_grams(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 20)))
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"some {name} of the curved blades never mind others by carolyn wells")
    options = [[tmp_path / "a.jsonl"], tokenizer, tmp_path / "out"]
    plan_only(request(*options, evaluation=[tmp_path / "one.txt"]))
    for other in ([tmp_path / "two.txt"], []):
        with pytest.raises(UserError, match="prepared with other --decontaminate files"):
            plan_only(request(*options, evaluation=other))
    run_tasks("task", tmp_path / "out", [0], Workers(1))
    merge_tasks(tmp_path / "out", Workers(1))


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_damaged_list_of_duplicates_is_not_trusted(tmp_path, tokenizer, damage):
    (tmp_path / "a.jsonl").write_bytes(jsonl([*texts(0, 100), *texts(0, 50)]))
    settings, out = PreparationSettings(deduplicate="near"), tmp_path / "out"
    prepare_files([tmp_path / "a.jsonl"], tokenizer, out, 1, settings, task_bytes=5000)
    reference = tree(out)
    path = sorted((out / "prep/drop").glob("*.exact.npy"))[-1]
    if damage == "missing":
        path.unlink()
    else:
        np.save(path, np.zeros(0, np.uint32))
    with pytest.raises(UserError, match=r"1 of \d+ tasks of .* are not finished"):
        merge_tasks(out, Workers(1))
    (out / "manifest.json").unlink()
    prepare_files([tmp_path / "a.jsonl"], tokenizer, out, 1, settings, task_bytes=5000)
    assert tree(out) == reference


def test_a_merge_keeps_the_record_of_a_task_that_ends_meanwhile(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 20)))
    out = tmp_path / "out"
    plan_only(request([tmp_path / "a.jsonl"], tokenizer, out))

    class Meanwhile(Workers):
        def run(self, work, tasks, out, on_progress):
            results = super().run(work, tasks, out, on_progress)
            run_tasks("task", out, tasks, Workers(1))
            return results

    with pytest.raises(UserError, match=r"1 of 1 tasks of .* are not finished: 0"):
        merge_tasks(out, Meanwhile(1))
    assert unfinished_stages(out) == {"merge": {}}


def test_a_plan_without_tasks_says_so(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").touch()
    out = tmp_path / "out"
    planned = command(
        "prep", "run", "--plan-only", "--input", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--out", out
    )
    assert "no tasks, 0.0 MB" in planned.out
    assert "all of its inputs are empty" in refused("prep", "task", out, "0")
