"""Doctor checks of a machine: cores and shared memory."""

import pytest

from launchers.doctor import machine_checks
from launchers.local import GIB
from pretrain.distributed import Cores, Threads
from tests.support.doctor import status


@pytest.mark.parametrize(
    "usable,present,threads,expected",
    [(8, 64, 8, "ok"), (8, 8, 8, "ok"), (8, 8, 16, "warn"), (2, 8, 8, "warn"), (1, 8, 1, "warn"), (1, 1, 1, "ok")],
)
def test_cores(usable, present, threads, expected):
    finding = machine_checks.judge_cores(Cores(usable, "a quota"), present, Threads(threads, "a share"))
    assert status(finding) == expected
    assert finding.value.startswith(f"{usable} of {present} usable; a run with 1 process has {threads} thread")


def test_shared_memory():
    assert status(machine_checks.judge_shm(64 << 20, 64 << 20)) == "fail"
    assert status(machine_checks.judge_shm(GIB, GIB // 2)) == "warn"
    assert status(machine_checks.judge_shm(8 * GIB, 8 * GIB)) == "ok"
