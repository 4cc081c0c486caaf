"""Checkpoints are complete and verifiable, or absent: damage, kills at every operation, lost ranks, lost power."""

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import torch
import torch.distributed as dist

from pretrain import checkpoint
from pretrain.checkpoint import Parts, Saver, newest_verified, remote_copies
from pretrain.config import CheckpointConfig
from tests.support import checkpoints, kills
from tests.support.checkpoints import MODEL, OPTIMIZER
from tests.support.datasets import flip
from tests.support.durable import recorded
from tests.support.ranks import check_on_ranks
from tests.support.runs import wait_for

STATE = {"position": [1, 2, 3], "identity": {"optim.lr": 5e-4, "data": "ä"}}

pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.fixture
def folder(tmp_path) -> Path:
    """RUN/checkpoints with committed steps 1 and 2."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step in (1, 2):
        commit(folder, step)
    return folder


def commit(folder: Path, step: int, save=checkpoints.snapshot, keep: int = 3, **settings) -> Path:
    return checkpoints.commit(folder, step, STATE, save, keep=keep, **settings)


def newest(folder: Path) -> tuple[int | None, list[str]]:
    told: list[str] = []
    saved = newest_verified(folder, told.append)
    return (saved.step if saved else None), told


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_commit_read_and_find(folder):
    path = folder / "step-00000002"
    saved = checkpoint.read(path)
    assert (saved.path, saved.step, saved.state) == (path, 2, STATE)
    assert set(saved.files) == {MODEL, OPTIMIZER}
    assert saved.files[MODEL]["bytes"] == 3000
    assert checkpoint.verify(path) is None
    assert checkpoint.committed(folder) == [(2, path), (1, folder / "step-00000001")]
    assert newest(folder) == (2, [])


def test_a_flip_in_any_byte_of_the_manifest_is_found(folder):
    path = folder / "step-00000002"
    manifest = path / "manifest.json"
    for place in range(manifest.stat().st_size - 1):  # the last is the newline, which says nothing
        flip(manifest, place)
        problem = checkpoint.verify(path)
        assert problem is not None, manifest.read_bytes()[place - 20 : place + 20]
        assert str(manifest) in problem
        flip(manifest, place)
    assert checkpoint.verify(path) is None


DAMAGE = {
    "a bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "truncated": lambda data: data[:-2],
    "longer": lambda data: data + b"x",
    "missing": None,
}


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named_and_the_older_checkpoint_taken(folder, name, damage):
    path, change = folder / "step-00000002" / name, DAMAGE[damage]
    if change:
        path.write_bytes(change(path.read_bytes()))
    else:
        path.unlink()
    assert str(path) in (checkpoint.verify(folder / "step-00000002") or "")
    step, told = newest(folder)
    assert step == 1
    assert len(told) == 1
    assert "step-00000002 is damaged and skipped" in told[0]
    assert name in told[0]


def test_every_file_is_checked_by_one_rank(folder):
    path = folder / "step-00000002"
    for name in (MODEL, OPTIMIZER):
        flip(path / name, 7)
        assert sum(checkpoint.verify(path, part, 2) is not None for part in range(2)) == 1
        flip(path / name, 7)


def test_leftovers_and_strangers_are_ignored_and_later_removed(folder):
    shutil.copytree(folder / "step-00000002", folder / "step-00000009.tmp")
    shutil.copytree(folder / "step-00000002", folder / "step-00000008.old.tmp")
    (folder / "step-00000007").write_text("a file")
    shutil.copytree(folder / "step-00000002", folder / "mine-00000009")
    assert newest(folder) == (2, [])
    commit(folder, 3)
    assert names(folder) == ["mine-00000009", "step-00000001", "step-00000002", "step-00000003", "step-00000007"]


def test_the_newest_and_multiples_are_kept(tmp_path):
    for step in range(1, 8):
        commit(tmp_path, step, keep=2, every_steps=1, keep_every=2)
    assert [step for step, _ in checkpoint.committed(tmp_path)] == [7, 6, 4, 2]
    assert newest(tmp_path) == (7, [])


@pytest.mark.parametrize("later", [2, 9])
def test_a_passed_over_checkpoint_does_not_push_out_a_sound_one(folder, later):
    """A resume skips a damaged later checkpoint and continues from step 1; its next checkpoint is kept."""
    if later != 2:
        shutil.move(folder / "step-00000002", folder / f"step-{later:08d}")
    flip(folder / f"step-{later:08d}" / MODEL, 0)
    assert newest(folder)[0] == 1
    for attempt in (1, 2):
        checkpoint.set_aside(folder, 1)
        path = commit(folder, 2, keep=1)
        assert checkpoint.verify(path) is None
        assert newest(folder) == (2, [])
        assert (folder / f"step-{later:08d}.aside-1" / MODEL).exists(), "renamed, not deleted"
        assert (folder / "step-00000002.aside-2").exists() == (attempt == 2 and later == 2)
    assert checkpoint.committed(folder) == [(2, folder / "step-00000002")]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_checkpoint_survives_a_power_failure(folder, asynchronous):
    """Files, folders and names are on disk in the right order."""
    with recorded(folder) as writes:
        used = checkpoints.saver(folder, asynchronous=asynchronous)
        used.begin(3, {})
        used.finish()
        used.close()
    assert newest(folder) == (3, [])
    assert writes.problems() == []


def test_a_fetched_checkpoint_survives_a_power_failure(folder, tmp_path):
    original, url = folder / "step-00000002", f"file://{tmp_path}/copies"
    copies = remote_copies.RemoteCopies(CheckpointConfig(remote=url), 0)
    copies.push(original)
    copies.close()
    shutil.rmtree(original)
    with recorded(folder) as writes:
        assert remote_copies.fetch_newest(url, folder, print) == original
    assert writes.problems() == []


def test_what_is_set_aside_stays_aside_after_a_power_failure(folder):
    """An abandoned checkpoint must not count again."""
    with recorded(folder) as writes:
        checkpoint.set_aside(folder, 1)
    assert checkpoint.committed(folder) == [(1, folder / "step-00000001")]
    assert writes.problems(lambda path: path.parent != folder) == []


def test_a_save_that_raises_leaves_the_previous_checkpoint(folder, capsys):
    def broken(sink: IO[bytes]) -> None:
        checkpoints.in_pieces(sink)
        raise OSError(28, "No space left on device")

    commit(folder, 3, lambda path, copy: {MODEL: checkpoints.in_pieces, OPTIMIZER: broken})
    assert names(folder) == ["step-00000001", "step-00000002"]
    assert f"{OPTIMIZER}: No space left on device" in capsys.readouterr().err
    assert newest(folder) == (2, [])
    commit(folder, 3)
    assert names(folder) == ["step-00000001", "step-00000002", "step-00000003"]


def test_a_file_that_no_rank_has_written_is_refused(folder, capsys):
    def strange(path: Path, copy: bool) -> Parts:
        (path / "zero_pp_rank_7_mp_rank_00_optim_states.pt").write_bytes(b"x")
        return checkpoints.snapshot(path, copy)

    commit(folder, 3, strange)
    assert "zero_pp_rank_7" in capsys.readouterr().err
    assert newest(folder) == (2, [])


def _audited_snapshot(folder: Path, copy: bool) -> Parts:
    sys.audit("copy", folder)
    return checkpoints.snapshot(folder, copy)


def commit_in_steps(folder: Path, asynchronous: bool) -> None:
    """Commit step 2. Asynchronously, a step of training is between the last write and the commit."""
    used = checkpoints.saver(folder, _audited_snapshot, keep=1, asynchronous=asynchronous)
    used.begin(2, {"position": [0, 0, 2]})
    if asynchronous:
        wait_for(lambda: used.poll()[0], 30)
        sys.audit("step", f"{folder} when it is written")
    used.finish()
    used.close()


@pytest.mark.parametrize("form", ["synchronous", "asynchronous"])
def test_sigkill_at_every_operation_of_a_commit(tmp_path, form):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    commit(folder, 1)
    attempts = kills.attempts(__name__, folder, form)
    steps = []
    for attempt in attempts:
        copy = Path(attempt["copy"])
        step, told = newest(copy)
        assert told == [], attempt
        steps.append(step)
        commit(copy, 3, keep=1)
        assert names(copy) == ["step-00000003"], attempt
        assert newest(copy) == (3, [])
    operations = " ".join(str(attempt["killed_at"]) for attempt in attempts)
    for seen in ("step-00000002.tmp", "model.pt", "manifest.json", "os.rename", "shutil.rmtree", "os.rmdir", "copy"):
        assert seen in operations, "the kills did not reach every phase"
    assert ("when it is written" in operations) == (form == "asynchronous")
    assert len(attempts) > 15
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (1, 2)


def test_a_save_is_due_by_the_clock_and_begins_it_anew(tmp_path):
    now = 1000.0
    used = checkpoints.saver(tmp_path, clock=lambda: now, every_minutes=2, asynchronous=False)
    assert used.poll() == (0, 0)
    now += 119
    assert used.poll() == (0, 0)
    now += 1
    assert used.poll() == (0, 1)
    used.begin(1, STATE)
    assert used.poll() == (0, 0)
    now += 10_000
    assert checkpoints.saver(tmp_path, clock=lambda: now).poll() == (0, 0), "not asked for"


def test_the_next_save_waits_for_the_one_in_flight(tmp_path):
    """Their writers never run at the same time, and the first is committed before the second begins."""
    free, events = threading.Event(), []

    def slow(sink: IO[bytes]) -> None:
        assert free.wait(10)
        events.append("written")
        checkpoints.in_pieces(sink)

    def snapshot(path: Path, copy: bool) -> Parts:
        assert copy
        events.append("copied")
        return {MODEL: slow}

    told: list = []
    used = checkpoints.saver(tmp_path, snapshot, told)
    used.begin(1, STATE)
    assert (used.busy, used.poll()) == (True, (0, 0))
    assert names(tmp_path) == ["step-00000001.tmp"]
    threading.Timer(0.2, free.set).start()
    used.begin(2, STATE)
    assert events[:3] == ["copied", "written", "copied"]
    assert "step-00000001" in names(tmp_path)
    used.finish()
    used.close()
    assert (used.saved_step, [step for step, _ in told]) == (2, [1, 2])
    assert newest(tmp_path) == (2, [])


def _file_of(rank: int) -> str:
    return f"deepspeed/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def _snapshot(folder: Path, copy: bool) -> Parts:
    rank = dist.get_rank()
    parts: Parts = {_file_of(rank): lambda sink: sink.write(bytes([rank]) * 500) and None}
    return parts | ({checkpoints.MODEL: checkpoints.in_pieces} if rank == 0 else {})


def _snapshot_and_die(folder: Path, copy: bool) -> Parts:
    """Rank 1's thread kills its process when rank 0 has written everything."""

    def die(sink: IO[bytes]) -> None:
        sink.write(b"a part")
        sink.flush()
        while not (folder / checkpoints.MODEL).exists() or (folder / checkpoints.MODEL).stat().st_size < 3000:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    return {_file_of(1): die} if dist.get_rank() == 1 else _snapshot(folder, copy)


def _train(used: Saver, seconds: float = 30) -> int:
    """Steps as the loop makes them, until the save in flight is committed or has failed; how many."""
    steps, deadline = 0, time.monotonic() + seconds
    while used.busy:
        assert time.monotonic() < deadline
        flags = torch.tensor(used.poll())
        dist.all_reduce(flags)
        if flags[0] == dist.get_world_size():
            used.finish()
        time.sleep(0.001)
        steps += 1
    return steps


def save(folder: str, *steps: str) -> None:
    """Save these steps; in step 3, rank 1 is lost."""
    for step in map(int, steps):
        used = checkpoints.saver(Path(folder), _snapshot_and_die if step == 3 else _snapshot)
        used.begin(step, {})
        _train(used)
        used.close()
        assert checkpoint.first_intact(Path(folder), [f"step-{step:08d}"], lambda saved: None)


def test_two_ranks_commit_together_and_one_lost_before_leaves_no_step(tmp_path):
    check_on_ranks(save, 2, tmp_path, "1", "2", timeout=60)
    assert set(checkpoint.read(tmp_path / "step-00000002").files) >= {_file_of(0), _file_of(1)}
    with pytest.raises(AssertionError, match=r"exit codes \[1, -9\]"):
        check_on_ranks(save, 2, tmp_path, "3", timeout=60)
    assert (tmp_path / "step-00000003.tmp" / OPTIMIZER).stat().st_size == 500
    assert newest(tmp_path) == (2, [])


if __name__ == "__main__":  # in the folder that is named, a commit killed at each of its operations
    from pretrain.checkpoint import saver

    # One rank without threads, which a fork would lose.
    one_rank: Any = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1, barrier=lambda: None)
    saver.dist = one_rank
    saver.all_gather_json = lambda value: [value]
    asynchronous = sys.argv[2] == "asynchronous"
    kills.print_kills(Path(sys.argv[1]), lambda copy: commit_in_steps(copy, asynchronous), ("open", "copy", "step"))
