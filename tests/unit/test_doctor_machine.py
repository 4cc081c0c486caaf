"""What `maskwright doctor` thinks of a machine: its cores, memory, clock and network."""

from pathlib import Path

import pytest

from launchers.doctor import machine, network
from tests.support.doctor import status

GIB = 1 << 30


@pytest.mark.parametrize(
    "usable,present,quota,threads,expected",
    [
        (8, 64, None, None, "ok"),
        (8, 8, None, "8", "ok"),
        (8, 8, None, "16", "warn"),
        (8, 8, 2.0, "8", "warn"),
        (8, 8, 2.0, "2", "ok"),
        (1, 8, None, None, "warn"),
        (1, 1, None, None, "ok"),
    ],
)
def test_cores(usable, present, quota, threads, expected):
    assert status(machine.judge_cores(usable, present, quota, threads)) == expected


def test_memory_and_its_like():
    assert status(machine.judge_memory(64 * GIB, 60 * GIB, None, 0, 0)) == "ok"
    assert status(machine.judge_memory(64 * GIB, 60 * GIB, GIB, 0, 0)) == "warn"
    assert status(machine.judge_memory(64 * GIB, GIB, None, 0, 0)) == "warn"
    assert status(machine.judge_memory(64 * GIB, 60 * GIB, None, 32 * GIB, 16 * GIB)) == "warn"
    assert status(machine.judge_shm(64 << 20, 64 << 20)) == "fail"
    assert status(machine.judge_shm(GIB, GIB // 2)) == "warn"
    assert status(machine.judge_shm(8 * GIB, 8 * GIB)) == "ok"
    assert status(machine.judge_files(1024, 524288)) == "warn"
    assert "ulimit -n 2048" in machine.judge_files(1024, 2048).advice
    assert status(machine.judge_files(-1, -1)) == "ok"
    assert status(machine.judge_locked(65536, infiniband=True)) == "warn"
    assert status(machine.judge_locked(65536, infiniband=False)) == "ok"
    assert status(machine.judge_locked(-1, infiniband=True)) == "ok"
    assert status(machine.judge_core_files(-1, "core")) == "warn"
    assert status(machine.judge_core_files(0, "core")) == "ok"
    assert status(machine.judge_core_files(-1, "|/usr/lib/systemd-coredump %p")) == "ok"
    assert status(machine.judge_governor("powersave", "acpi-cpufreq")) == "warn"
    assert status(machine.judge_governor("powersave", "intel_pstate")) == "ok"
    assert status(machine.judge_governor(None, None)) == "skipped"
    assert status(machine.judge_clock(0.0, None)) == "fail"
    assert status(machine.judge_clock(2e9, False)) == "warn"
    assert status(machine.judge_clock(2e9, None)) == "ok"


def test_control_groups_of_both_versions():
    found = machine.control_groups("4:memory:/jobs/7\n0::/slurm/job_1\n")
    assert Path("/sys/fs/cgroup/memory/jobs/7") in found
    assert Path("/sys/fs/cgroup/memory/jobs") in found
    assert Path("/sys/fs/cgroup/slurm/job_1") in found
    assert Path("/sys/fs") not in found
    assert machine.cpu_quota(["max 100000", "150000 100000", "-1 100000", "400000 100000"]) == 1.5
    assert machine.cpu_quota(["max 100000"]) is None


def test_network():
    assert status(network.judge_host_name("n1", ["127.0.1.1", "10.0.0.1"])) == "ok"
    assert status(network.judge_host_name("n1", ["127.0.1.1", "::1"])) == "warn"
    assert status(network.judge_host_name("n1", [])) == "warn"
    present = ["eth0", "ib0", "lo"]
    for named, expected in {
        "eth0": "ok",
        "eth1": "fail",
        "=ib": "fail",
        "=ib0": "ok",
        "eth,ib": "ok",
        "^lo": "ok",
    }.items():
        assert status(network.judge_interface("eth0", present, {"NCCL_SOCKET_IFNAME": named})) == expected, named
    assert status(network.judge_interface(None, present, {})) == "warn"
    assert network.judge_adapters({}).status == "skipped"
    assert status(network.judge_adapters({"mlx5_0:1": "4: ACTIVE"})) == "ok"
    assert "mlx5_1:1" in network.judge_adapters({"mlx5_0:1": "4: ACTIVE", "mlx5_1:1": "1: DOWN"}).advice
    assert status(network.judge_adapters({"mlx5_1:1": "1: DOWN"})) == "warn"
    assert network.address_towards("127.0.0.1") == "127.0.0.1"
