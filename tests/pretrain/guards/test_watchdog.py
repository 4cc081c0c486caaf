"""The watchdog: who is behind, what is no hang, and clocks that jump."""

import itertools
import json
import random
import threading
import time

import pytest

from pretrain.guards import Watchdog
from pretrain.guards.watchdog import Beat, verdict
from pretrain.reporting.progress_line import ProgressLine
from pretrain.run import Journal, PhaseMarker, RunFolder, read_journal

HOSTS = ["n1", "n2", "n3"]
SECONDS = 0.5  # of a hang


def beats(*places: tuple[int, int, str]) -> list[Beat]:
    return [Beat(number, step, phase) for number, step, phase in places]


def test_a_rank_without_heartbeat_is_named():
    before = beats((5, 7, "backward"), (3, 7, "forward"), (5, 7, "backward"))
    after = beats((9, 7, "backward"), (3, 7, "forward"), (9, 7, "backward"))
    assert verdict(before, after, HOSTS) == "no sign of life from rank 1 (on n2), last seen at step 7, forward"
    assert verdict([None, *before[1:]], [None, after[1], after[2]], HOSTS) == (
        "no sign of life from rank 0 (on n1), rank 1 (on n2), last seen at step 7, forward"
    )
    assert verdict([None, before[0], before[2]], [after[0], after[0], after[2]], HOSTS) == (
        "all ranks are at step 7, backward"
    ), "a file that could not be read once says nothing"


def test_the_rank_that_is_behind_is_named():
    def judged(*places):
        now = [Beat(9, *place) for place in places]
        return verdict([Beat(5, *place) for place in places], now, HOSTS)

    assert judged((7, "backward"), (7, "backward"), (7, "data")) == (
        "rank 2 (on n3) behind at step 7, data, while others are at step 7, backward"
    )
    assert judged((8, "data"), (7, "step"), (7, "step")) == (
        "rank 1 (on n2), rank 2 (on n3) behind at step 7, step, while others are at step 8, data"
    )
    assert judged((7, "step"), (7, "step"), (7, "step")) == "all ranks are at step 7, step"


class Ranks:
    """Watchdogs of several ranks in this process."""

    def __init__(self, tmp_path, number=2, seconds=SECONDS):
        self.folder = RunFolder(tmp_path)
        self.folder.write_status("running", 6, 20, "training", "none")
        self.left = threading.Event()
        self.markers = [PhaseMarker() for _ in range(number)]
        self.dogs = [
            Watchdog(self.folder, marker, rank, HOSTS[:number], seconds, leave=lambda code: self.left.set())
            for rank, marker in enumerate(self.markers)
        ]

    def close(self):
        for dog in self.dogs:
            dog.close()

    def enter(self, phase, step):
        for marker in self.markers:
            marker.enter(phase, step)


@pytest.fixture
def ranks(tmp_path):
    made = Ranks(tmp_path)
    yield made
    made.close()


def test_a_hang_ends_the_run_with_the_rank_and_the_stacks(ranks, capsys):
    for dog in ranks.dogs:
        dog.start()
    ranks.enter("data", 6)
    time.sleep(0.2)
    ranks.enter("data", 7)
    ranks.markers[0].enter("backward")
    assert ranks.left.wait(10)
    ranks.close()
    status = ranks.folder.recorded_status()
    assert status.state == "failed"
    assert "rank 1 (on n2) behind at step 7, data, while others are at step 7, backward" in status.reason
    assert "test_a_hang_ends_the_run" in "".join(path.read_text() for path in ranks.folder.stacks.iterdir())
    assert capsys.readouterr().err.count("error: no progress for 0.5 s") == 1


def test_a_silent_rank_is_named(ranks):
    ranks.dogs[0].start()
    beat = {"number": 4, "step": 7, "phase": "forward"}
    (ranks.folder.heartbeats / "rank-00001.json").write_text(json.dumps(beat))
    ranks.enter("data", 6)
    time.sleep(0.2)
    ranks.enter("backward", 7)
    assert ranks.left.wait(10)
    assert "no sign of life from rank 1 (on n2), last seen at step 7, forward" in ranks.folder.recorded_status().reason


def test_the_start_and_the_first_step_may_take_longer(ranks):
    assert not any(dog._thread.is_alive() for dog in ranks.dogs)
    (dog, _), (marker, _) = ranks.dogs, ranks.markers

    def overdue_after(seconds):
        at = marker.at
        dog._awake = at.since - 1000
        return dog._is_overdue(type(at)(at.step, at.phase, time.monotonic() - seconds))

    dog._seconds = 200.0
    places = [("start", 0, 600), ("data", 5, 600), ("data", 6, 200), ("checkpoint", 6, 600)]
    places += [("start", 6, 600), ("data", 3, 600), ("data", 4, 200)]  # after a rollback, the model compiles anew
    for phase, step, limit in places:
        marker.enter(phase, step)
        assert not overdue_after(0.9 * limit), (phase, step)
        assert overdue_after(1.1 * limit), (phase, step)
    dog._seconds = 1.0
    marker.enter("checkpoint", 6)
    assert not overdue_after(290)
    assert overdue_after(310)


def test_wall_clocks_may_jump(ranks, tmp_path, monkeypatch):
    """Everything that lasts is measured by a monotonic clock, and order is by step."""
    for dog in ranks.dogs:
        dog.start()
    jumps = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: jumps.uniform(0, 4e9))
    journal, shown = Journal(tmp_path / "journal.jsonl"), ProgressLine(30, 0)
    for step in range(1, 31):
        ranks.enter("data", step)
        time.sleep(0.03)
        journal.append(step, {"train/loss": float(step)})
        shown.update(step, {"train/loss": 1.0})
    journal.close()
    assert not ranks.left.is_set()
    entries = read_journal(tmp_path / "journal.jsonl")
    assert [entry.step for entry in entries] == list(range(1, 31))
    assert any(later.time < entry.time for entry, later in itertools.pairwise(entries))


class Suspended(threading.Event):
    """Waits far longer than asked a few times, then says that the watchdog was closed."""

    times = 4

    def wait(self, timeout=None):
        time.sleep(6 * timeout)
        self.times -= 1
        return self.times == 0


def test_a_process_that_was_suspended_starts_counting_anew(ranks):
    """SIGSTOP and SIGCONT of a whole job, as a batch system does it: the watchdog itself has not run either."""
    dog, marker = ranks.dogs[0], ranks.markers[0]
    ranks.folder.heartbeats.mkdir()
    marker.enter("data", 1)
    assert not dog._is_overdue(marker.at)
    marker.enter("data", 2)
    dog._closed = Suspended()
    dog._run()  # 24 intervals, of which 10 are a hang
    assert time.monotonic() - marker.at.since > 2 * SECONDS * 0.5
    assert not ranks.left.is_set()
    dog._awake = 0.0
    assert dog._is_overdue(type(marker.at)(2, "data", time.monotonic() - 2 * SECONDS))
