"""Many small files share tasks: all documents in order, the same bytes for any workers, old shards never change."""

import json
import shutil

import pytest

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.inspection import document
from data_prep.jobs import PrepareRequest, Workers, plan_only, prepare, run_tasks
from data_prep.jobs.plan_inputs import MAX_SINGLE
from data_prep.jobs.preparation_plan import plan_path, read_plan
from data_prep.sources import find_inputs
from tests.support.prep import jsonl, prepare_files, request, rows_file, texts, tree

COUNT = MAX_SINGLE + 44
LARGE = [" ".join(texts(2 + number, 2000)) for number in range(4)]  # more than 1 MiB


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer):
    """A folder with `in`, COUNT files of one line and a large one, and `out`, their data set; and the notes."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "in/inner").mkdir(parents=True)
    for number, text in enumerate(texts(1, COUNT)):
        if number % 3:  # the others are in another folder, and of another type
            (folder / f"in/{number:03d}.txt").write_text(text)
        else:
            (folder / f"in/inner/{number:03d}.jsonl").write_bytes(jsonl([text]))
    (folder / "in/200a.txt").write_text("\n\n".join(LARGE))
    return folder, prepare_files([folder / "in"], tokenizer, folder / "out").notes


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "copy")


def documents(out):
    dataset = Dataset(out)
    return [document(dataset, number).text for number in range(dataset.manifest.totals.documents)]


def test_all_documents_come_in_the_order_of_the_files(made, tokenizer, tmp_path):
    folder, notes = made
    plan = read_plan(folder / "out")
    assert sum(given.files for given in plan.inputs) == COUNT + 1
    assert len(plan.tasks) < 6, "groups of up to 1 MiB, ended by the large file and by another type"
    assert [given.name for given in plan.inputs if given.files == 1] == ["200a.txt"]
    expected = texts(1, COUNT)
    small = [expected[number] for number in range(COUNT) if number % 3]
    large = next(number for number, name in enumerate(small) if name.split()[-1] == "200.")
    order = small[: large + 1] + LARGE + small[large + 1 :] + expected[::3]
    shown = [text.replace(" .", ".") for text in documents(folder / "out")]
    assert shown == [text.lower() for text in order]
    assert any(f"{COUNT + 1 - len(expected[::3])} text files" in note for note in notes)
    prepare_files([folder / "in"], tokenizer, tmp_path / "two", workers=2)
    assert tree(folder / "out") == tree(tmp_path / "two")


def test_files_that_are_added_later_change_no_shard(folder, tokenizer, tmp_path):
    out = folder / "out"
    before, plan = tree(out / "shards"), read_plan(out)
    (folder / "in/100a.txt").write_text("never mind")
    moved = (folder / "in").rename(tmp_path / "moved")
    prepare_files([moved], tokenizer, out)
    after = read_plan(out)
    assert after.inputs[: len(plan.inputs)] == plan.inputs
    assert [given.name for given in after.inputs[len(plan.inputs) :]] == ["100a.txt"]
    assert before.items() < tree(out / "shards").items()
    for number in range(MAX_SINGLE + 1):
        (moved / f"new{number}.txt").write_text(f"some little meaning {number}")
    prepare_files([moved], tokenizer, out)
    assert len(read_plan(out).inputs) == len(after.inputs) + 1
    assert Dataset(out).manifest.totals.documents == COUNT + len(LARGE) + 1 + MAX_SINGLE + 1


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_a_file_of_a_group_that_is_gone_or_changed_is_named(folder, tokenizer, change):
    file = folder / "in/inner/003.jsonl"
    file.unlink() if change == "gone" else file.write_bytes(jsonl(["other words"]))
    with pytest.raises(UserError, match=r"The input inner/003.jsonl that was prepared before has changed or is not"):
        prepare_files([folder / "in"], tokenizer, folder / "out")


def test_a_task_refuses_a_file_that_changed_after_the_plan(folder, tokenizer, tmp_path):
    out = tmp_path / "out"
    plan, _ = plan_only(request([folder / "in"], tokenizer, out))
    (folder / "in/001.txt").write_text("other words")
    with Workers(1) as workers, pytest.raises(UserError, match=r"in/001\.txt has changed since it was planned; run"):
        run_tasks("task", out, range(len(plan.tasks)), workers)


def test_an_unreadable_row_is_listed_with_its_file_and_line(folder, tokenizer, tmp_path):
    file = folder / "in/inner/063.jsonl"
    file.write_bytes(jsonl(["never mind"]) * 2 + b'{"text": 7}\n' + jsonl(["the others"]))
    prepare_files([folder / "in"], tokenizer, tmp_path / "out", allow_unreadable=0.1)
    row = json.loads((tmp_path / "out/quarantine.jsonl").read_text())
    assert (row["file"], row["line"]) == ("inner/063.jsonl", 3)


def test_a_list_that_is_damaged_is_refused(folder, tokenizer):
    path = min((folder / "out/prep/files").iterdir())
    listed = json.loads(path.read_text())
    listed[0]["digest"] = "0"
    path.write_text(json.dumps(listed))
    with pytest.raises(UserError, match=r"it lists other files than the plan; choose a new --out folder\."):
        prepare_files([folder / "in"], tokenizer, folder / "out")


def test_a_digest_that_is_a_path_is_refused(folder, tokenizer, tmp_path):
    out = tmp_path / "out"
    plan_only(request([folder / "in"], tokenizer, out))
    plan = json.loads(plan_path(out).read_text())
    next(given for given in plan["inputs"] if given["files"] > 1)["digest"] = "../place"
    plan_path(out).write_text(json.dumps(plan))
    with Workers(1) as workers, pytest.raises(UserError, match="the digest of a group of files is not an XXH3 hash"):
        run_tasks("task", out, [0], workers)


def test_tables_in_groups_of_one_source(tokenizer, tmp_path):
    expected = texts(3, MAX_SINGLE + 1)
    for number, text in enumerate(expected):
        folder = tmp_path / f"in/{'ab'[number > 99]}/{number:03d}"
        folder.mkdir(parents=True)
        rows_file(folder, [{"text": text}], "parquet")
    inputs = find_inputs([f"*={tmp_path / 'in'}"])
    with Workers(1) as workers:
        prepare(PrepareRequest(inputs, tokenizer, tmp_path / "out"), workers)
    assert [text.replace(" .", ".") for text in documents(tmp_path / "out")] == [text.lower() for text in expected]
    sources = Dataset(tmp_path / "out").manifest.sources
    assert [(source.source, source.documents) for source in sources] == [("a", 100), ("b", MAX_SINGLE - 99)]
