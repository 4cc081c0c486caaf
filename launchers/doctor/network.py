"""How other machines can reach this one."""

import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from launchers.doctor.finding import Check, Finding
from pretrain.interfaces import addresses

_ANYWHERE = "203.0.113.1"  # of no machine (RFC 5737); nothing is sent to it
_NAMING = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_INFINIBAND = Path("/sys/class/infiniband")


def checks() -> list[Check]:
    """Name, interface, port, and InfiniBand adapters where there are any."""
    looks = {"host name": _host_name, "interface": _interface, "port": _port, "infiniband": _infiniband}
    return [Check("network", name, look) for name, look in looks.items()]


def judge_host_name(name: str, addresses: Sequence[str]) -> Finding:
    """The host's own name, and the addresses it stands for here."""
    value = f"{name} is {', '.join(addresses)}" if addresses else f"{name} has no address"
    if not addresses:
        advice = "several nodes cannot find each other by name: add it to DNS or /etc/hosts"
        return Finding("host name", "warn", value, advice)
    if all(ipaddress.ip_address(address).is_loopback for address in addresses):
        advice = "ranks on other nodes would be sent to themselves: let /etc/hosts give it the address of the network"
        return Finding("host name", "warn", value, advice)
    return Finding("host name", "ok", value)


def judge_interface(chosen: str | None, present: Sequence[str], variables: Mapping[str, str]) -> Finding:
    """The interface that leads outside, and whether those that the environment names are there."""
    for variable in _NAMING:
        if (named := variables.get(variable)) and not any(_matches(pattern, present) for pattern in named.split(",")):
            advice = f"unset {variable}, or name one of {', '.join(present)}"
            return Finding("interface", "fail", f"{variable}={named}, which is not there", advice)
    settings = [f"{variable}={variables[variable]}" for variable in _NAMING if variables.get(variable)]
    if chosen is None:
        return Finding("interface", "warn", "no way to other machines", "this machine can only train by itself")
    return Finding("interface", "ok", ", ".join([chosen, *settings]))


def judge_adapters(states: Mapping[str, str]) -> Finding:
    """InfiniBand ports and their states, as the kernel writes them (`4: ACTIVE`)."""
    if not states:
        return Finding("infiniband", "skipped", "no adapter")
    down = [name for name, state in states.items() if "ACTIVE" not in state]
    value = f"{len(states) - len(down)} of {len(states)} ports active"
    if down and len(down) < len(states):
        advice = f"NCCL will go without {', '.join(down)}: have the cables and the switch looked at"
        return Finding("infiniband", "warn", value, advice)
    if down:
        return Finding("infiniband", "warn", value, "NCCL will use Ethernet: have the fabric looked at")
    return Finding("infiniband", "ok", value)


def address_towards(peer: str) -> str | None:
    """This machine's address on the way to another; nothing is sent. None where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def outside_address() -> str | None:
    """The address by which others reach this machine: on its default way, else the first that is not its own."""
    found = [one.address for those in psutil.net_if_addrs().values() for one in those if one.family == socket.AF_INET]
    others = (address for address in found if not ipaddress.ip_address(address).is_loopback)
    return address_towards(_ANYWHERE) or next(others, None)


def _matches(pattern: str, present: Sequence[str]) -> bool:
    """NCCL's forms: eth (a beginning), =eth0 (a name), ^docker (all but)."""
    if pattern.startswith("^"):
        return True
    if pattern.startswith("="):
        return pattern[1:] in present
    return any(name.startswith(pattern) for name in present)


def _host_name() -> Iterator[Finding]:
    name = socket.gethostname()
    try:
        addresses = sorted({str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(name, None)})
    except socket.gaierror:
        addresses = []
    yield judge_host_name(name, addresses)


def _interface() -> Iterator[Finding]:
    address = outside_address()
    chosen = addresses().get(address) if address else None
    outside = f"{chosen} ({address})" if chosen else None
    yield judge_interface(outside, sorted(psutil.net_if_addrs()), os.environ)


def _port() -> Iterator[Finding]:
    address = outside_address() or "127.0.0.1"
    with socket.socket() as server, socket.socket() as client:
        try:
            server.bind((address, 0))
            server.listen()
            client.settimeout(3)
            client.connect(server.getsockname())
        except OSError as error:
            advice = (
                "rank 0 listens on a free port there: a firewall or an address that is not this machine's is in the way"
            )
            yield Finding("port", "fail", f"{address} takes no connection ({error})", advice)
            return
        yield Finding("port", "ok", f"{address} takes connections, on {server.getsockname()[1]} for one")


def _infiniband() -> Iterator[Finding]:
    ports = sorted(_INFINIBAND.glob("*/ports/*/state"))
    yield judge_adapters({f"{port.parts[-4]}:{port.parts[-2]}": port.read_text().strip() for port in ports})
