"""A data set prepared piece by piece, grown by later inputs, cleaned and without duplicates; files of others."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.inspection import summary, verify_data_set
from data_prep.jobs import PreparationSettings, Workers, merge_tasks, plan_only, run_tasks, unfinished_stages
from data_prep.jobs.preparation_plan import read_plan, write_plan
from data_prep.tokenizer import copy_files
from tests.support.in_process import command, refused
from tests.support.prep import decoded, jsonl, prepare_files, request, texts, tree

IN_RANGES = re.compile("prep/(plan.json|scan/|resolve/)")  # what the number of ranges changes


def numbers(tasks) -> list[str]:
    return [str(task) for task in tasks]


def test_pieces_give_the_bytes_of_one_run(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(jsonl([*texts(0, 100), *texts(0, 50)]) + b"{broken\n" + jsonl(texts(1, 50)))
    options = ["--input", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--valid-fraction", "0.2"]
    options += ["--deduplicate", "exact", "--task-mb", "0.01"]
    assert command("prep", "run", *options, "--out", tmp_path / "one").code == 0
    out = tmp_path / "pieces"
    planned = command("prep", "run", "--plan-only", *options, "--out", out)
    plan = read_plan(out)
    tasks = range(len(plan.tasks))
    assert f"tasks 0 to {tasks[-1]}, ranges 0 to 0, " in planned.out
    write_plan(replace(plan, ranges=5), out)
    assert len(tasks) > 2
    assert "0 to" in refused("prep", "task", out, len(tasks))
    assert f"{len(tasks)} tasks are not scanned" in refused("prep", "task", out, "--stage", "resolve", "--workers", "1")
    assert "are not known" in refused("prep", "task", out, "0")
    assert "no range 5; its ranges are 0 to 4" in refused("prep", "task", out, "5", "--stage", "resolve")
    assert command("prep", "task", out, *numbers(tasks), "--stage", "scan").code == 0
    stages = unfinished_stages(out)
    unfinished = {"resolve": [*range(5)], "task": [*tasks], "merge": []}
    assert {name: list(of_stage) for name, of_stage in stages.items()} == unfinished
    assert command("prep", "task", out, "3", "1", "--stage", "resolve", "--workers", "1").code == 0
    assert list(unfinished_stages(out)["resolve"]) == [0, 2, 4]
    assert "are not known" in refused("prep", "task", out, "0")
    assert command("prep", "task", out, "--stage", "resolve", "--memory-gb", "0.01", "--workers", "1").code == 0
    assert "resolve" not in unfinished_stages(out)
    damaged = out / "prep/resolve/00003.exact"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert "00003.exact is missing or damaged" in refused("prep", "task", out, "0", "--workers", "1")
    assert command("prep", "task", out, "--stage", "resolve", "--workers", "1").code == 0
    assert command("prep", "task", out, *numbers(tasks[1:])).code == 0
    assert f"1 of {len(tasks)} tasks of {out} are not finished: 0." in refused("prep", "merge", out)
    assert command("prep", "task", out, *numbers(tasks)).code == 0
    assert command("prep", "merge", out).code == 0
    one, pieces = tree(tmp_path / "one"), tree(out)
    differing = {name for name in one.keys() | pieces.keys() if one.get(name) != pieces.get(name)}
    assert all(map(IN_RANGES.match, differing))
    assert sorted(decoded(out / "train") + decoded(out / "valid")) == sorted(texts(0, 100) + texts(1, 50))
    (line,) = map(json.loads, (out / "quarantine.jsonl").open())
    assert (line["file"], line["line"]) == ("a.jsonl", 151)


@pytest.mark.parametrize("deduplicate", ["none", "exact", "near"])
def test_added_inputs_are_prepared_alone(tmp_path, tokenizer, deduplicate):
    settings = PreparationSettings(valid_fraction=0.1, deduplicate=deduplicate)
    (tmp_path / "b.jsonl").write_bytes(jsonl(texts(0, 200)))
    out = tmp_path / "out"
    prepare_files([tmp_path / "b.jsonl"], tokenizer, out, 1, settings)
    before = tree(out)
    (tmp_path / "a.jsonl").write_bytes(jsonl([*texts(0, 20), *texts(1, 100)]))
    prepared = prepare_files([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tokenizer, out, 1, settings)
    assert prepared.new_tasks == 1
    after = tree(out)
    changed = {name for name in before if after[name] != before[name]}
    wanted = {"prep/plan.json", "train/manifest.json", "valid/manifest.json"}
    if deduplicate != "none":
        wanted |= {"train/left_out.json", "valid/left_out.json"}
        wanted |= {name for name in before if name.startswith("prep/resolve/0")}
    assert changed == wanted
    kept = decoded(out / "train") + decoded(out / "valid")
    assert len(kept) == 300 if deduplicate != "none" else 320
    assert set(kept) == {*texts(0, 200), *texts(1, 100)}
    sources = prepared.manifests[out / "train"].sources
    assert [source.name for source in sources] == ["b.jsonl", "a.jsonl"]
    assert sources[1].left_out == ({"duplicate": 20} if deduplicate != "none" else {})
    again = prepare_files([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tokenizer, out, 1, settings)
    assert again.new_tasks == 0
    assert tree(out) == after
    assert list(verify_data_set(out / "train")) == []


def test_cleaning_is_counted(tmp_path, tokenizer):
    kept, evaluated = texts(0, 30), "some little meaning of others by the curved blades never mind the meaning others"
    long, short, repeated = "never " * 500, "mind", "\n".join(["the same line of words again"] * 40)
    rows = [*kept, kept[3], long, short, repeated, f"the others {evaluated} blades", "\uff54he \uff4fthers."]
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows))
    (tmp_path / "evaluation.tsv").write_text(f"1\t{evaluated}\n0\ttoo short\n")
    run = ["prep", "run", "--input", f"books={tmp_path / 'a.jsonl'}", "--tokenizer", tokenizer]
    run += ["--out", tmp_path / "out", "--normalize", "nfkc", "--filter", "characters=6-2000"]
    run += ["--filter", "repetitive", "--deduplicate", "exact", "--decontaminate", tmp_path / "evaluation.tsv"]
    result = command(*run)
    assert result.code == 0, result.err
    assert "3 evaluation texts have fewer than 8 words" in result.err
    left_out = Dataset(tmp_path / "out").manifest.left_out()
    assert left_out["contaminated"] == left_out["long"] == left_out["short"] == left_out["duplicate"] == 1
    assert left_out["repetitive"] >= 1
    assert "1 contaminated" in result.err
    assert Dataset(tmp_path / "out").manifest.sources[0].source == "books"
    assert "the others." in decoded(tmp_path / "out")
    assert summary(Dataset(tmp_path / "out"))["documents"] == len(decoded(tmp_path / "out"))


def test_ids_are_kept(tmp_path, tokenizer):
    rows = [{"text": text, "meta": {"id": number}} for number, text in enumerate(texts(0, 50))]
    rows.insert(7, {"text": "without an id"})
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    run = ["prep", "run", "--input", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--out", tmp_path / "out"]
    assert command(*run, "--id-field", "meta.id", "--valid-fraction", "0.2").code == 0
    pairs = {}
    for split in ("train", "valid"):
        dataset = Dataset(tmp_path / "out" / split)
        ids = [id for block in range(dataset.n_blocks) for id in dataset.ids(block) or []]
        pairs |= dict(zip(ids, decoded(dataset.path), strict=True))
    assert pairs == dict(enumerate(texts(0, 50)))
    assert json.loads((tmp_path / "out/quarantine.jsonl").read_text())["line"] == 8


def test_what_has_no_ids_or_no_duplicates_says_so(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n\n".join(texts(0, 10)))
    plan = ["prep", "run", "--input", tmp_path / "a.txt", "--tokenizer", tokenizer, "--out", tmp_path / "out"]
    plan.append("--plan-only")
    assert "a.txt has no fields, and so no 'id'" in refused(*plan, "--id-field", "id")
    assert command(*plan).code == 0
    assert "nothing to scan or resolve" in refused("prep", "task", tmp_path / "out", "0", "--stage", "scan")
    assert "nothing to scan or resolve" in refused("prep", "task", tmp_path / "out", "--stage", "resolve")


def test_an_evaluation_file_is_no_input(tmp_path, tokenizer):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text("never mind")
    a, b, c = (tmp_path / f"{name}.txt" for name in ("a", "b", "c"))
    run = ["prep", "run", "--tokenizer", tokenizer, "--out", tmp_path / "out", "--decontaminate", b]
    assert "b.txt is both an input and an evaluation file" in refused(*run, "--input", tmp_path)
    assert "b.txt is both an input and an evaluation file" in refused(*run, b, "--input", a)
    assert "c.txt is both" in refused(*run, c, "--decontaminate", c, "--input", a)


# Files that a preparation may change and trust: other folders, reruns after kills and mistakes, its inputs


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
    (out / "extra.jsonl").write_bytes(jsonl(texts(1, 20)))
    more = prepare_files([tmp_path / "a.jsonl", out / "extra.jsonl"], tmp_path / "outside/tok", out)
    assert f"{out}/extra.jsonl is not read: {out} is the folder of the output." in more.notes


def test_a_refused_command_leaves_the_tokenizer_and_its_commit(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 20)))
    out, other = tmp_path / "out", tmp_path / "other.json"
    prepare_files([tmp_path / "a.jsonl"], tokenizer / "tokenizer.json", out)
    (out / "prep/tokenizer/hub.json").write_text('{"name": "hub:owner/name"}')
    before = tree(out)
    state = json.loads((tokenizer / "tokenizer.json").read_text())
    other.write_text(json.dumps(state | {"normalizer": None}))
    (tmp_path / "b.jsonl").write_bytes(jsonl(texts(1, 20)))
    for name, given in (("a.jsonl", other), ("b.jsonl", tokenizer / "tokenizer.json")):
        with pytest.raises(UserError, match=r"was prepared with another --tokenizer|is not given now"):
            prepare_files([tmp_path / name], given, out)
        assert tree(out) == before
    assert prepare_files([tmp_path / "a.jsonl"], "hub:owner/name", out).new_tasks == 0  # from the commit of before
    assert tree(out) == before


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
    run = ["prep", "run", "--plan-only", "--input", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--out", out]
    assert "no tasks, 0.0 MB" in command(*run).out
    assert "all of its inputs are empty" in refused("prep", "task", out, "0")
