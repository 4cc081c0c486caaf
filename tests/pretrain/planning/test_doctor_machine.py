"""What `maskwright doctor` thinks of a machine: its cores, memory, folders and network."""

import pytest

from launchers.doctor import machine_checks
from pretrain.distributed.threads import Cores, Threads
from pretrain.planning import check_memory
from pretrain.planning.node_checks import check_room, check_writes
from tests.support.doctor import status

GIB = 1 << 30


@pytest.mark.parametrize(
    "usable,present,threads,expected",
    [(8, 64, 8, "ok"), (8, 8, 8, "ok"), (8, 8, 16, "warn"), (2, 8, 8, "warn"), (1, 8, 1, "warn"), (1, 1, 1, "ok")],
)
def test_cores(usable, present, threads, expected):
    finding = machine_checks.judge_cores(Cores(usable, "a quota"), present, Threads(threads, "a share"))
    assert status(finding) == expected
    assert finding.value.startswith(f"{usable} of {present} usable; a run with 1 process has {threads} thread")


def test_memory_and_limits():
    assert status(check_memory(64 * GIB, 60 * GIB)) == "ok"
    assert status(check_memory(64 * GIB, int(1.9 * GIB))) == "warn"
    assert status(check_memory(64 * GIB, GIB)) == "fail", "less than 2 %"
    assert status(machine_checks.judge_shm(64 << 20, 64 << 20)) == "fail"
    assert status(machine_checks.judge_shm(GIB, GIB // 2)) == "warn"
    assert status(machine_checks.judge_shm(8 * GIB, 8 * GIB)) == "ok"
    assert status(machine_checks.judge_files(1024, 524288)) == "warn"
    assert "ulimit -n 2048" in machine_checks.judge_files(1024, 2048).advice
    assert status(machine_checks.judge_files(-1, -1)) == "ok"


def test_folders(tmp_path):
    assert status(check_room("x", tmp_path, least=1)) == "ok"
    assert status(check_room("x", tmp_path, least=1, wanted=1 << 60)) == "warn"
    assert status(check_room("x", tmp_path, least=1 << 60)) == "fail"
    assert status(check_room("x", tmp_path / "none", least=1)) == "fail"
    assert status(check_writes("x", tmp_path)) in ("ok", "warn")
    assert status(check_writes("x", tmp_path / "none")) == "fail"
    assert not list(tmp_path.iterdir())


def test_network():
    assert status(machine_checks.judge_host_name("n1", ["127.0.1.1", "10.0.0.1"])) == "ok"
    assert status(machine_checks.judge_host_name("n1", ["127.0.1.1", "::1"])) == "warn"
    assert status(machine_checks.judge_host_name("n1", [])) == "warn"
    present = ["eth0", "ib0", "lo"]
    for named, expected in {
        "eth0": "ok",
        "eth1": "fail",
        "=ib": "fail",
        "=ib0": "ok",
        "eth,ib": "ok",
        "^lo": "ok",
    }.items():
        assert status(machine_checks.judge_interface("eth0", present, {"NCCL_SOCKET_IFNAME": named})) == expected, named
    assert status(machine_checks.judge_interface(None, present, {})) == "warn"
