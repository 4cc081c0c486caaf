"""Documents with the same id: counted over all tasks, with an example, whatever the order of work."""

import json

import numpy as np
import pytest

from data_prep.format import Dataset
from data_prep.jobs import PreparationSettings, Workers
from data_prep.jobs.document_ids import hash_of, repeated_ids, save_hashes
from data_prep.jobs.prepare import merge_tasks
from data_prep.jobs.task_worker import record_path
from data_prep.sources import Options
from data_prep.tokenizer import train
from tests.support.in_process import command
from tests.support.prep import prepare_files, texts


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "tok"
    train(texts(0, 100), "wordpiece", 120, folder)
    return folder


def rows(ids, seed=1) -> str:
    return "".join(
        json.dumps({"text": text, "id": id}) + "\n" for text, id in zip(texts(seed, len(ids)), ids, strict=True)
    )


def warnings(paths, tokenizer, out, id_field="id", valid_fraction=0.0, **more) -> list[str]:
    settings = PreparationSettings(reading=Options(id_field=id_field), valid_fraction=valid_fraction)
    prepared = prepare_files(paths, tokenizer, out, 1, settings, **more)
    return [note for note in prepared.notes if note.startswith("warning")]


def test_same_ids_within_a_file_and_between_files(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text(rows([f"a-{number}" for number in range(60)]))
    (tmp_path / "b.jsonl").write_text(rows([*(f"b-{number}" for number in range(60)), "b-7", "a-5"], 2))
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    assert warnings(files[:1], tokenizer, tmp_path / "unique") == []
    (told,) = warnings(files, tokenizer, tmp_path / "out", valid_fraction=0.3, task_bytes=2000)
    assert told.startswith("warning: 2 documents have the id of another one, for example '")
    example = told.split("'")[1]
    assert (example, "b.jsonl" in told, "a.jsonl and b.jsonl" in told) in (("b-7", True, False), ("a-5", True, True))
    assert told.endswith("correct the input or --id-field and choose another --out.")
    with Workers(1) as workers:
        assert told in merge_tasks(tmp_path / "out", workers).notes
    assert warnings(files, tokenizer, tmp_path / "out", valid_fraction=0.3, task_bytes=2000) == [told], (
        "the finished data set tells again"
    )
    assert warnings(files, tokenizer, tmp_path / "none", id_field=None) == []


def test_the_command_warns_and_the_data_set_is_complete(tmp_path, tokenizer, capsys):
    (tmp_path / "a.jsonl").write_text(rows(["x", "x", "y"]))
    words = ["prep", "run", "--input", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--id-field", "id"]
    ended = command(capsys, *words, "--workers", "1", "--out", tmp_path / "out")
    assert ended.code == 0
    assert ended.err.count("warning: 1 document has the id of another one, for example 'x' in a.jsonl.") == 1
    assert Dataset(tmp_path / "out").ids(0) == ["x", "x", "y"]


def test_numbers_and_texts_are_different_ids(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text(rows([7, "7", 8, "é"]))
    assert warnings([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out") == []
    assert len({hash_of(id) for id in (7, "7", 70, "70")}) == 4


def test_records_of_an_earlier_version_are_kept_and_lost_hashes_made_again(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text(rows(["x", "x"]))
    assert len(warnings([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out")) == 1
    (tmp_path / "out/prep/ids/00000.npy").unlink()
    assert len(warnings([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out")) == 1
    path = record_path(tmp_path / "out", 0)
    record = json.loads(path.read_bytes())
    del record["ids_sha256"]
    path.write_text(json.dumps(record))
    settings = PreparationSettings(reading=Options(id_field="id"))
    prepared = prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", 1, settings)
    assert prepared.new_tasks == 0
    assert not any("id of another" in note for note in prepared.notes)


@pytest.mark.parametrize("max_bytes", [1 << 28, 800, 8])
def test_several_passes_count_the_same(tmp_path, max_bytes):
    """The largest and the smallest hash included."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 1 << 64, 400, dtype=np.uint64, endpoint=False).tolist()
    parts = [[*hashes[:200], 0, (1 << 64) - 1, hashes[0]], [*hashes[200:], hashes[3], 0, (1 << 64) - 1], []]
    for task, part in enumerate(parts):
        save_hashes(tmp_path, task, part)
    assert repeated_ids(tmp_path, range(3), max_bytes) == (4, 0)
