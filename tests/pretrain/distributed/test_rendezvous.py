"""Environment of a rank: variables of launchers, the address of rank 0, network interfaces, and ports in use."""

import os
import socket
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from data_prep.common.errors import UserError
from pretrain.distributed import interface_to, listen, local_processes, network_interfaces, prepare_rendezvous
from pretrain.distributed.network_interfaces import listening_address


def of_openmpi(**more: str) -> dict[str, str]:
    names = {"RANK": "3", "LOCAL_RANK": "1", "SIZE": "4", "LOCAL_SIZE": "2"}
    return {f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()} | more


def test_openmpis_names_are_understood() -> None:
    environment = of_openmpi(MASTER_ADDR="127.0.0.1")
    prepare_rendezvous(environment)
    values = [environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "GLOO_SOCKET_IFNAME")]
    assert values == ["3", "1", "4", "29500", "lo"]


def of_pytorchjob(**more: str) -> dict[str, str]:
    return {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PET_NPROC_PER_NODE": "1"} | more


def test_a_pod_of_kubernetes_has_one_process() -> None:
    environment = of_pytorchjob(MASTER_PORT="23456")
    prepare_rendezvous(environment)
    assert [environment[name] for name in ("RANK", "LOCAL_RANK", "MASTER_PORT")] == ["1", "0", "23456"]


def test_an_interface_that_was_chosen_is_kept() -> None:
    environment = of_openmpi(MASTER_ADDR="127.0.0.1", NCCL_SOCKET_IFNAME="ib0")
    prepare_rendezvous(environment)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("ib0", "lo")


@pytest.mark.parametrize("name", ["LOCAL_SIZE", "LOCAL_WORLD_SIZE"])
def test_processes_of_one_host_keep_to_loopback(name: str) -> None:
    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", name: "2", "MASTER_ADDR": "n1.example"}
    prepare_rendezvous(environment)
    values = [environment[name] for name in ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
    assert values == ["127.0.0.1", "lo", "lo"]


@pytest.mark.parametrize(
    "environment,sentence",
    [
        (of_openmpi, "-x MASTER_ADDR=ADDRESS"),
        (dict, "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR not set"),
        (lambda: of_pytorchjob(PET_NPROC_PER_NODE="8"), "PET_NPROC_PER_NODE is 8: start .* `torchrun -m pretrain"),
    ],
)
def test_what_a_launcher_left_open_is_named(environment: Callable[[], dict[str, str]], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        prepare_rendezvous(environment())


@pytest.mark.parametrize(
    "environment,expected",
    [
        ({"LOCAL_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({}, 1),
        ({"LOCAL_SIZE": "0"}, 1),
    ],
)
def test_how_many_processes_share_a_host(environment: dict[str, str], expected: int) -> None:
    assert local_processes(environment) == expected


def own_address() -> tuple[str, str] | None:
    """(interface, IPv4 address) of a network that is not loopback, if this machine has one."""
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return name, entry.address
    return None


@pytest.mark.parametrize("path", ["/nowhere", os.environ["PATH"]])
def test_interface_is_found_without_any_program(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("PATH", path)
    assert interface_to("127.0.0.1") == "lo"
    if own := own_address():
        assert interface_to(own[1]) == own[0]


def fake_network(monkeypatch: pytest.MonkeyPatch, sources: dict[str, str | None]) -> None:
    """Hosts that resolve to the keys, in this order, each reached from its value."""
    targets = [(10 if ":" in target else 2, 2, 17, "", (target, 9)) for target in sources]
    monkeypatch.setattr(network_interfaces.socket, "getaddrinfo", lambda *_, **__: targets)
    monkeypatch.setattr(network_interfaces, "source_address", lambda family, target: sources[target[0]])
    addresses = {"eth0": ["10.0.0.1", "fe80::1%eth0"], "ib0": ["10.1.0.1", "fd00::1"], "lo": ["127.0.0.1", "::1"]}
    shown = {
        name: [SimpleNamespace(family=10 if ":" in text else 2, address=text) for text in texts]
        for name, texts in addresses.items()
    }
    monkeypatch.setattr(network_interfaces.psutil, "net_if_addrs", lambda: shown)


def test_several_interfaces_and_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_network(monkeypatch, {"10.1.0.2": "10.1.0.1"})
    assert interface_to("n2") == "ib0"
    fake_network(monkeypatch, {"fd00::2": "fd00::1"})
    assert interface_to("n2") == "ib0"
    fake_network(monkeypatch, {"fe80::2": "fe80::1%eth0"})
    assert interface_to("n2") == "eth0"
    fake_network(monkeypatch, {"2001:db8::2": None, "10.0.0.2": "10.0.0.1"})
    assert interface_to("n2") == "eth0", "a name with an IPv6 address that nothing leads to, and an IPv4 one"


def test_no_way_to_a_host_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_network(monkeypatch, {"2001:db8::2": None, "10.9.0.2": "10.9.0.1"})
    with pytest.raises(UserError, match=r"leads to n2 \(2001:db8::2, 10.9.0.2\): name the one .* cluster.interface"):
        interface_to("n2")


def test_a_name_that_does_not_resolve_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(network_interfaces.socket, "getaddrinfo", fail)
    with pytest.raises(UserError, match=r"cannot find the address of n2 \(Name or service not known\): .* /etc/hosts"):
        interface_to("n2")


@pytest.mark.parametrize(
    "host,resolved,interface,expected",
    [
        ("127.0.0.1", ["127.0.0.1"], "ib0", "127.0.0.1"),
        ("10.0.0.1", ["10.0.0.1"], "ib0", "10.0.0.1"),
        ("n1", ["127.0.0.1", "10.1.0.1"], "eth0", "10.1.0.1"),
        ("n1", ["127.0.1.1"], "ib0,eth0", "10.1.0.1"),
        ("n1", ["203.0.113.7"], "eth0", "10.0.0.1"),
        ("n1", ["127.0.1.1"], "lo", "127.0.1.1"),
        ("n1", ["fd00::1"], None, "fd00::1"),
    ],
)
def test_rank_0_listens_where_the_others_look_for_it(monkeypatch, host, resolved, interface, expected) -> None:
    fake_network(monkeypatch, dict.fromkeys(resolved))
    assert listening_address(host, interface) == expected


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with listen("127.0.0.1", 0, None) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"rank 0 cannot listen at 127.0.0.1, port {port} \(Address already in"):
            listen("127.0.0.1", port, None)
