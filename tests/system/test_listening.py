"""Listening addresses of a run: loopback on one machine, the common network on several."""

import contextlib
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launchers.local import rank_variables
from tests.support import runs


def listening(process: psutil.Process) -> list[str]:
    """The addresses of a process's listening sockets, from the system's list."""
    folder, found = Path(f"/proc/{process.pid}"), []
    own = set()
    for descriptor in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a running process closes files while this reads them
            own.add(os.readlink(descriptor))
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in (folder / "net" / table).read_text().splitlines()[1:]:
            address, state, inode = (line.split()[field] for field in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in own:
                words = bytes.fromhex(address.partition(":")[0])  # of 4 bytes, the lowest first
                packed = b"".join(words[start : start + 4][::-1] for start in range(0, len(words), 4))
                found.append(socket.inet_ntop(family, packed))
    return found


def test_training_on_one_machine_listens_on_loopback_alone(data, tmp_path):
    run = tmp_path / "run"
    path = runs.config_file(data, run, train__steps=100_000)
    command = runs.start_maskwright(tmp_path / "log", "train", path, "--procs", "2")
    runs.wait_for_step(run, 2)
    processes = [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
    found = [address for process in processes for address in listening(process)]
    ranks = runs.ranks_of(path)
    each = {rank: len(listening(process)) for rank, process in ranks.items()}
    (run / "STOP").touch()
    command.wait(120)
    assert each[0] > each[1] > 0, "the store of rank 0, and gloo on both"
    assert all(ipaddress.ip_address(address).is_loopback for address in found), found


@pytest.fixture
def two_networks() -> Iterator[list[str]]:
    """The names of two network namespaces, like hosts: 10.99.0.1 and 10.99.0.2, joined by a cable."""
    names = [f"maskwright-{os.getpid()}-{number}" for number in (1, 2)]
    if not shutil.which("ip") or subprocess.run(["ip", "netns", "add", names[0]], capture_output=True).returncode:
        pytest.skip("network namespaces need root and the program `ip`")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.99.0.{number}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                ip("-n", name, "link", "set", interface, "up")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name, check=False)


def ip(*words: str, check: bool = True) -> None:
    """Run the program `ip`."""
    subprocess.run(["ip", *words], check=check, capture_output=True)


@pytest.mark.slow
def test_training_on_two_hosts_listens_on_their_common_network_alone(data, tmp_path, two_networks):
    run = tmp_path / "run"
    path = runs.config_file(data, run, train__steps=100_000)
    hosts = []
    for node, network in enumerate(two_networks):
        command = ["ip", "netns", "exec", network, sys.executable, "-m", "pretrain.train", "--config", str(path)]
        variables = rank_variables(0, 1, node, 2, "10.99.0.1", 29777) | {"DS_ACCELERATOR": "cpu"}
        hosts.append(subprocess.Popen(command, env=runs.environment() | variables, cwd=runs.ROOT))
    try:
        runs.wait_for_step(run, 2)
        found = [set(listening(psutil.Process(host.pid))) for host in hosts]  # `ip` becomes the command
        (run / "STOP").touch()
        assert [host.wait(60) for host in hosts] == [75, 75]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert found == [{"10.99.0.1"}, {"10.99.0.2"}]
