"""The watchdog: ranks that are behind, and pauses that are not hangs."""

import threading
import time

import pytest

from pretrain.guards import Watchdog
from pretrain.guards.watchdog import Beat, verdict
from pretrain.run import PhaseMarker, RunFolder

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

    def __init__(self, tmp_path, number=2, seconds=SECONDS, clock=time.monotonic):
        self.folder = RunFolder(tmp_path)
        self.folder.write_status("running", 6, 20, "training", "none")
        self.left = threading.Event()
        self.markers = [PhaseMarker(clock) for _ in range(number)]
        self.dogs = [
            Watchdog(self.folder, marker, rank, HOSTS[:number], seconds, lambda code: self.left.set(), clock)
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


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


# After a rollback, the model compiles again.
PLACES = [("start", 0), ("data", 5), ("data", 6), ("checkpoint", 6), ("start", 6), ("data", 3), ("data", 4)]


@pytest.mark.parametrize(
    ("seconds", "limits"), [(200, (600, 600, 200, 600, 600, 600, 200)), (1, (300, 300, 1, 300, 300, 300, 1))]
)
def test_the_start_the_first_step_and_checkpoints_may_take_longer(tmp_path, seconds, limits):
    clock = Clock()
    ranks = Ranks(tmp_path, number=1, seconds=seconds, clock=clock)
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())
    (dog,), (marker,) = ranks.dogs, ranks.markers
    for place, limit in zip(PLACES, limits, strict=True):
        marker.enter(*place)
        for share in (0.9, 1.1):
            clock.now = marker.at.since + share * limit
            assert dog.is_overdue() == (share > 1), place


def test_a_process_that_was_suspended_starts_counting_anew(tmp_path):
    """SIGSTOP and SIGCONT of a whole job, as a batch system does it: the watchdog itself has not run either."""
    clock = Clock()
    ranks = Ranks(tmp_path, number=1, clock=clock)
    (dog,), (marker,) = ranks.dogs, ranks.markers
    ranks.folder.heartbeats.mkdir()
    interval = SECONDS / 10
    marker.enter("data", 1)
    dog.check()
    marker.enter("data", 2)
    for _ in range(4):  # 24 intervals; 10 are a hang
        clock.now += 6 * interval
        dog.check()
    assert not ranks.left.is_set()
    for _ in range(11):
        clock.now += interval
        dog.check()
    assert ranks.left.is_set()
