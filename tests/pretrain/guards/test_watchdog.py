"""The watchdog: ranks that are behind, and pauses that are not hangs.

tests/system/faults/test_guards.py has a hang of a run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from pretrain.guards import Watchdog
from pretrain.guards.watchdog import Beat, verdict
from pretrain.run import PhaseMarker, RunFolder

HOSTS = ["n1", "n2", "n3"]


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


def watched(folder: Path, seconds: float, clock: Callable[[], float]) -> tuple[Watchdog, PhaseMarker, list[int]]:
    """The watchdog of a run of one rank, what it watches, and the codes that it ended the process with."""
    run, marker, codes = RunFolder(folder), PhaseMarker(clock), list[int]()
    run.write_status("running", 6, 20, "training", "none")
    run.heartbeats.mkdir()
    return Watchdog(run, marker, 0, HOSTS[:1], seconds, codes.append, clock), marker, codes


# After a rollback, the model compiles again.
PLACES = [("start", 0), ("data", 5), ("data", 6), ("checkpoint", 6), ("start", 6), ("data", 3), ("data", 4)]


@pytest.mark.parametrize(
    ("seconds", "limits"), [(200, (600, 600, 200, 600, 600, 600, 200)), (1, (300, 300, 1, 300, 300, 300, 1))]
)
def test_the_start_the_first_step_and_checkpoints_may_take_longer(tmp_path, seconds, limits):
    now = 1000.0
    dog, marker, _ = watched(tmp_path, seconds, lambda: now)
    for place, limit in zip(PLACES, limits, strict=True):
        marker.enter(*place)
        for share in (0.9, 1.1):
            now = marker.at.since + share * limit
            assert dog.is_overdue() == (share > 1), place


def test_a_process_that_was_suspended_starts_counting_anew(tmp_path):
    """SIGSTOP and SIGCONT of a whole job, as a batch system does it: the watchdog itself has not run either."""
    now, interval = 1000.0, 0.05
    dog, marker, codes = watched(tmp_path, 10 * interval, lambda: now)
    marker.enter("data", 1)
    dog.check()
    marker.enter("data", 2)
    for _ in range(4):  # 24 intervals; 10 are a hang
        now += 6 * interval
        dog.check()
    assert codes == []
    for _ in range(11):
        now += interval
        dog.check()
    assert {*codes} == {1}
