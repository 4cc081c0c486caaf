"""Copies of checkpoints behind a URL: complete or absent, pruned, fetched; a failure does not stop the run."""

import re
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from data_prep.common.errors import UserError
from pretrain import checkpoint
from pretrain.checkpoint import Checkpoint, remote_copies
from pretrain.config import CheckpointConfig
from tests.support import kills
from tests.support.checkpoints import MODEL, make_checkpoint

FS = fsspec.filesystem("memory")


@pytest.fixture
def url(tmp_path) -> str:
    return f"memory://{tmp_path.name}-remote/run"


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "checkpoints"


def copy(url: str, *paths: Path, after_step: int = 0, **settings) -> list[tuple[int, dict[str, float]]]:
    """Copy one after the other; what was reported."""
    told: list[tuple[int, dict[str, float]]] = []
    used = remote_copies.RemoteCopies(CheckpointConfig(remote=url, **settings), after_step)
    for path in paths:
        used.push(path)
        used.wait()
        used.report_failures(lambda step, metrics: told.append((step, metrics)))
    used.close()
    return told


def test_copies_are_pruned_like_the_originals_and_come_back(url, folder, tmp_path):
    paths = [make_checkpoint(folder, step) for step in (1, 2, 3, 4, 5)]
    assert copy(url, *paths, keep=1, every_steps=2, keep_every=2) == []
    assert remote_copies.copies(url) == [5, 4, 2]
    back = tmp_path / "back"
    back.mkdir()
    said: list[str] = []
    assert remote_copies.fetch_newest(url, back, said.append) == back / "step-00000005"
    assert said == [f"fetching step-00000005 from {url}"]
    assert checkpoint.verify(back / "step-00000005") is None
    assert checkpoint.read(back / "step-00000005").files == checkpoint.read(paths[-1]).files


def test_a_copy_cut_short_does_not_count_and_is_replaced(url, folder, monkeypatch, capsys):
    path = make_checkpoint(folder, 1)
    inner = FS.put_file

    def fail(self, here, there):
        if there.endswith("optim_states.pt"):
            raise OSError(28, "No space left on device: https://host?token=secret")
        inner(here, there)

    with monkeypatch.context() as broken:
        broken.setattr(type(FS), "put_file", fail)
        assert copy(url, path) == [(1, {"checkpoint/remote_failed": 1.0})]
    said = capsys.readouterr().err
    assert "warning: the checkpoint of step 1 was not copied" in said
    assert "No space left" in said
    assert "secret" not in said
    assert remote_copies.copies(url) == []
    assert copy(url, make_checkpoint(folder, 2)) == [], "the next is tried again"
    assert copy(url, path, after_step=2) == []
    assert remote_copies.copies(url) == [2, 1]


def test_copies_of_later_steps_do_not_count_once_a_run_went_back(url, folder):
    copy(url, *(make_checkpoint(folder, step) for step in (4, 8, 12)), keep=5)
    for step in (8, 12):
        shutil.rmtree(folder / f"step-{step:08d}")
    assert copy(url, make_checkpoint(folder, 8), after_step=4, keep=2) == []
    assert remote_copies.copies(url) == [8, 4]
    root = url.removeprefix("memory://")
    assert FS.exists(f"/{root}/step-00000012/manifest.aside.json"), "unknown files are not deleted"
    assert FS.exists(f"/{root}/step-00000012/{MODEL}")


@pytest.mark.parametrize("damage", ["flipped", "missing", "manifest"])
def test_a_damaged_copy_is_passed_over(url, folder, tmp_path, damage):
    copy(url, make_checkpoint(folder, 1), make_checkpoint(folder, 2))
    place = f"/{url.removeprefix('memory://')}/step-00000002/"
    if damage == "missing":
        FS.rm_file(place + MODEL)
    else:
        name = MODEL if damage == "flipped" else "manifest.json"
        FS.pipe(place + name, FS.cat(place + name)[::-1])
    back = tmp_path / "back"
    back.mkdir()
    said: list[str] = []
    assert remote_copies.fetch_newest(url, back, said.append) == back / "step-00000001"
    assert any("step-00000002 is damaged and skipped" in line for line in said)
    assert [path.name for path in back.iterdir()] == ["step-00000001"]


def test_a_manifest_cannot_lead_out_of_the_folder(url, folder, tmp_path):
    path = make_checkpoint(folder, 1)
    files = checkpoint.read(path).files
    Checkpoint(path, 1, {}, files | {"../../evil": files[MODEL]}).write()
    assert "outside the folder" in (checkpoint.verify(path) or "")
    place = f"/{url.removeprefix('memory://')}/step-00000001"
    FS.pipe(f"{place}/manifest.json", (path / "manifest.json").read_bytes())
    with pytest.raises(UserError, match="outside the folder"):
        remote_copies.fetch_newest(url, folder, lambda text: None)


def _in_halves(source: Any, target: Any, length: int = 0) -> None:
    """shutil.copyfileobj that is killed in the middle of a file, too."""
    data = source.read()
    target.write(data[: len(data) // 2])
    target.flush()
    sys.audit("half", target.name)
    target.write(data[len(data) // 2 :])


@pytest.mark.process
def test_sigkill_at_every_operation_of_an_upload(folder, tmp_path):
    """A copy is there and can be read, or does not count; the next start removes what is partial and copies again."""
    for step in (1, 2, 3):
        make_checkpoint(folder, step)
    there = tmp_path / "remote"
    copy(f"file://{there}", folder / "step-00000001")
    attempts = kills.attempts(__name__, folder, there)
    newest = []
    for attempt in attempts:
        place = Path(attempt["copy"])
        steps = remote_copies.copies(f"file://{place}")
        for step in steps:
            assert checkpoint.verify(place / f"step-{step:08d}") is None, attempt
        newest.append(max(steps, default=0))
        start = folder / f"step-{3:08d}"
        used = remote_copies.RemoteCopies(CheckpointConfig(remote=f"file://{place}", keep=1), 3, start)
        used.close()
        assert [path.name for path in place.iterdir()] == ["step-00000003"], attempt
        assert checkpoint.verify(place / "step-00000003") is None, attempt
        assert (place / "step-00000003" / MODEL).read_bytes() == (start / MODEL).read_bytes()
    assert newest == sorted(newest), newest
    assert (newest[0], newest[-1]) == (1, 3)
    assert 2 in newest
    operations = [str(attempt["killed_at"]) for attempt in attempts]
    for seen in ("half .*model.pt", "half .*manifest", "os.rename .*manifest", "os.remove .*manifest", "os.rmdir"):
        assert any(re.match(seen, operation) for operation in operations), f"no kill at {seen}: {operations}"


def test_a_complete_copy_is_not_made_again(url, folder):
    path = make_checkpoint(folder, 1)
    copy(url, path)
    again: list[Path] = []
    upload = lambda place, path: again.append(path)  # noqa: E731
    remote_copies.RemoteCopies(CheckpointConfig(remote=url), 1, path, upload).close()
    assert again == []
    other = make_checkpoint(folder / "other", 1)
    replace(checkpoint.read(other), state={"another": 1}).write()
    remote_copies.RemoteCopies(CheckpointConfig(remote=url), 1, other, upload).close()
    assert again == [other], "of another attempt"


def test_a_slow_place_holds_nobody_up_and_gets_the_newest(url, folder):
    """While the first is copied, two more are committed: the second is left out, and the first not deleted."""
    free = threading.Event()
    copied = []

    def slow(place, path):
        assert free.wait(10)
        copied.append(path.name)
        remote_copies.upload_copy(place, path)

    used = remote_copies.RemoteCopies(CheckpointConfig(remote=url), 0, upload=slow)
    paths = [make_checkpoint(folder, step) for step in (1, 2, 3)]
    for path in paths:
        used.push(path)
    while paths[0] not in used.needed():
        pass
    free.set()
    used.close()
    assert copied == ["step-00000001", "step-00000003"]
    assert used.needed() == set()


def test_the_end_of_a_run_does_not_wait_for_ever(url, folder, capsys):
    free, remote = threading.Event(), CheckpointConfig(remote=url)
    used = remote_copies.RemoteCopies(remote, 0, upload=lambda place, path: free.wait(10), close_seconds=0.05)
    used.push(make_checkpoint(folder, 1))
    used.close()
    assert "warning: step-00000001 is not copied to" in capsys.readouterr().err
    free.set()


if __name__ == "__main__":  # copies of steps 2 and 3 from one folder to another, killed at each operation
    shutil.copyfileobj = _in_halves
    shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    source, target = map(Path, sys.argv[1:])
    paths = [source / f"step-{step:08d}" for step in (2, 3)]
    events = ("open", "shutil.move", "half")
    kills.print_kills(target, lambda there: copy(f"file://{there}", *paths, after_step=1, keep=1), events)
