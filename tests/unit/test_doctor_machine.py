"""What `maskwright doctor` thinks of a machine: its cores, memory, clock and network."""

import pytest

from launchers.doctor import machine, network
from pretrain.threads import Cores, Threads
from tests.support.doctor import status

GIB = 1 << 30


@pytest.mark.parametrize(
    "usable,present,threads,expected",
    [(8, 64, 8, "ok"), (8, 8, 8, "ok"), (8, 8, 16, "warn"), (2, 8, 8, "warn"), (1, 8, 1, "warn"), (1, 1, 1, "ok")],
)
def test_cores(usable, present, threads, expected):
    finding = machine.judge_cores(Cores(usable, "a quota"), present, Threads(threads, "a share"))
    assert status(finding) == expected
    assert finding.value.startswith(f"{usable} of {present} usable; a run with 1 process has {threads} thread")


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
