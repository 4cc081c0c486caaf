"""Environment of a rank: variables of launchers, the address of rank 0, network interfaces, and ports in use."""

import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from data_prep.common.errors import UserError
from pretrain.distributed import interface_to, listen, local_processes, network_interfaces, prepare_rendezvous
from pretrain.distributed.network_interfaces import listening_address


def of_openmpi(**more: str) -> dict[str, str]:
    names = {"RANK": "3", "LOCAL_RANK": "1", "SIZE": "4", "LOCAL_SIZE": "2"}
    return {f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()} | more


def of_pytorchjob(**more: str) -> dict[str, str]:
    return {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PET_NPROC_PER_NODE": "1"} | more


def of_one_host(name: str) -> dict[str, str]:
    """The environment of a launcher that gives the number of ranks on a host this name."""
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", name: "2", "MASTER_ADDR": "n1.example"}


LOCAL = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
OF_OPENMPI = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_PORT": "29500", "NCCL_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    "environment,added",
    [
        (of_openmpi(MASTER_ADDR="127.0.0.1"), OF_OPENMPI),
        (of_pytorchjob(MASTER_PORT="23456"), {"RANK": "1", "LOCAL_RANK": "0", "MASTER_PORT": "23456"}),
        (of_openmpi(MASTER_ADDR="127.0.0.1", NCCL_SOCKET_IFNAME="ib0"), {"NCCL_SOCKET_IFNAME": "ib0"}),
        (of_one_host("LOCAL_SIZE"), {"NCCL_SOCKET_IFNAME": "lo"}),
        (of_one_host("LOCAL_WORLD_SIZE"), {"NCCL_SOCKET_IFNAME": "lo"}),
        (of_one_host("OMPI_COMM_WORLD_LOCAL_SIZE"), {"NCCL_SOCKET_IFNAME": "lo"}),
    ],
    ids=["openmpi", "a pod's process", "a chosen interface", "one host", "torchrun's one host", "openmpi's one host"],
)
def test_what_a_launcher_leaves_to_us_is_added(environment: dict[str, str], added: dict[str, str]) -> None:
    prepare_rendezvous(environment)
    assert environment.items() >= (LOCAL | added).items()


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


def test_interface_is_found_without_any_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert interface_to("127.0.0.1") == "lo"


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
