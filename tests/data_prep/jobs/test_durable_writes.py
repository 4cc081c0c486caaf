"""Durable writes: bytes are on disk before a rename, and the name is on disk after it."""

import contextlib
import json
import os
import zipfile

import pytest

from data_prep.common.files import atomic_folder, atomic_writer, write_json
from data_prep.jobs import PreparationSettings, plan_only
from data_prep.jobs.preparation_plan import plan_path
from data_prep.storage import Cache
from data_prep.tokenizer import train_tokenizer
from pretrain.run import RunFolder
from tests.support.durable import recorded
from tests.support.prep import jsonl, prepare_files, request, texts


def test_a_file_is_synced_renamed_and_its_folder_synced(tmp_path):
    with recorded(tmp_path) as writes, atomic_writer(tmp_path / "file") as file:
        file.write(b"some bytes that stay in the buffer")
        assert not (tmp_path / "file").exists()
    assert (tmp_path / "file").read_bytes() == b"some bytes that stay in the buffer"
    assert writes.problems() == []
    assert [target for _, target in writes.renames] == [tmp_path / "file"]


def test_a_file_that_is_replaced_has_its_old_bytes_until_the_rename(tmp_path):
    """A writer that dies before the rename leaves the old file unchanged, and no other file."""
    write_json(tmp_path / "file.json", [1])
    inode = (tmp_path / "file.json").stat().st_ino
    with contextlib.suppress(KeyError), atomic_writer(tmp_path / "file.json") as file:
        file.write(b"half")
        file.flush()
        raise KeyError
    assert json.loads((tmp_path / "file.json").read_bytes()) == [1]
    write_json(tmp_path / "file.json", [2])
    assert (tmp_path / "file.json").stat().st_ino != inode, "it was overwritten in place"
    assert os.listdir(tmp_path) == ["file.json"]


def test_a_folder_is_synced_with_all_that_is_in_it(tmp_path):
    with recorded(tmp_path) as writes, atomic_folder(tmp_path / "new" / "folder") as folder:
        (folder / "a").write_bytes(b"a")
        (folder / "below" / "it").mkdir(parents=True)
        (folder / "below" / "it" / "b").write_bytes(b"b")
    assert (tmp_path / "new" / "folder" / "below" / "it" / "b").read_bytes() == b"b"
    assert writes.problems() == []


@pytest.mark.parametrize(
    "settings",
    [PreparationSettings(), PreparationSettings(valid_fraction=0.2, deduplicate="near")],
    ids=["whole", "split and deduplicated"],
)
def test_a_preparation_is_durable(tmp_path, tokenizer, settings):
    """Plan, place, task records, scans, lists of duplicates, quarantine, tokenizer, shards and manifests."""
    (tmp_path / "a.jsonl").write_bytes(jsonl([*texts(1, 50), texts(1, 1)[0]]) + b"not JSON\n")
    with recorded(tmp_path) as writes:
        prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", settings=settings, task_bytes=3000)
    assert (tmp_path / "out" / "quarantine.jsonl").exists()
    assert writes.problems(lambda path: path.name == "lock") == []


def test_a_plan_is_written_when_all_that_it_needs_is_durable(tmp_path, tokenizer):
    """A plan on disk implies that all files that it needs are on disk."""
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(1, 50)))
    (tmp_path / "evaluation.txt").write_text(" ".join(texts(2, 9)))
    out = tmp_path / "out"
    with recorded(tmp_path) as writes:
        plan_only(request([tmp_path / "a.jsonl"], tokenizer, out, evaluation=[tmp_path / "evaluation.txt"]))
    assert writes.problems(lambda path: path.name == "lock") == []
    earlier = writes.before_rename(plan_path(out))
    assert (out / "prep" / "evaluation.npy").exists()
    assert earlier.problems(lambda path: path.name in ("lock", "plan.json")) == []


def test_what_killed_writers_left_is_removed_except_folders(tmp_path, tokenizer):
    """A folder is of another command, such as an export to a place in OUT."""
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(1, 50)))
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out")
    left = [tmp_path / "out" / name / ".x.host.7.tmp" for name in (".", "prep", "shards", "prep/tasks", "tokenizer")]
    folder = tmp_path / "out" / ".model.host.7.tmp"
    folder.mkdir()
    for path in left:
        path.touch()
    for path in (*left, folder):
        os.utime(path, (0, 0))
    prepare_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob(".*.tmp")] == [folder.name]


def test_a_tokenizer_is_durable(tmp_path):
    with recorded(tmp_path) as writes:
        train_tokenizer(texts(0, 50), "wordpiece", 100, tmp_path / "tok")
    assert writes.problems() == []


def test_a_cached_input_is_on_disk_before_it_has_its_name(tmp_path):
    """The name alone says that the file is complete."""
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.writestr("a.jsonl", jsonl(texts(0, 20)))
    cache = Cache(tmp_path / "cache", 1 << 20)
    with recorded(tmp_path / "cache") as writes, cache.local(f"zip://a.jsonl::{tmp_path}/text.zip") as path:
        assert path.read_bytes() == jsonl(texts(0, 20))
    assert [problem for problem in writes.problems() if f"{path.name}: no fsync of all its bytes" in problem] == []
    assert [target for _, target in writes.renames] == [path]


def test_a_run_folder_is_durable(tmp_path):
    """Its checkpoints are lost if the folder above them is lost."""
    with recorded(tmp_path) as writes:
        folder = RunFolder(tmp_path / "runs" / "a")
        folder.create()
        folder.write_status("running", 1, 2, "", "")
    assert folder.status.exists()
    assert writes.problems() == []
