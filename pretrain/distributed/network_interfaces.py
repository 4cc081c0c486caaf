"""Network interfaces: find the one that leads to another machine, and the address to listen on."""

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

import psutil

from data_prep.common.errors import UserError

_DISCARD_PORT = 9  # to connect a datagram socket sends nothing; the system only chooses the route


def interface_to(host: str) -> str:
    """The interface whose address the system would send from.

    Raises UserError when the name does not resolve, nothing leads there, or no interface has that address.
    """
    targets = _resolve(host, socket.SOCK_DGRAM)
    interfaces = network_addresses()
    for family, _, _, _, target in targets:
        own = source_address(family, target)
        name = interfaces.get(own.partition("%")[0]) if own else None
        if name:
            return name
    tried = ", ".join(str(target[0]) for *_, target in targets)
    raise UserError(
        f"no network interface of {socket.gethostname()} leads to {host} ({tried}): name the one that the nodes share "
        "with cluster.interface or GLOO_SOCKET_IFNAME"
    )


def listening_address(host: str, interface: str | None) -> str:
    """The address of this machine that others reach as `host`.

    Args:
        host: a name or an address of this machine, as the others know it.
        interface: the one to take where `host` means another address, or, on this machine alone, loopback (as
            Debian's /etc/hosts has it). Of several, separated by commas, the first.

    Raises UserError when the name does not resolve.
    """
    resolved = [str(target[0]) for *_, target in _resolve(host, socket.SOCK_STREAM)]
    if host in resolved and _is_loopback(host):
        return host
    own, first = network_addresses(), (interface or "").partition(",")[0]
    named = [address for address in resolved if address in own]
    others = [address for address, name in own.items() if name == first and not address.startswith("fe80:")]
    return next((address for address in named + others if not _is_loopback(address)), resolved[0])


def listen(host: str, port: int, interface: str | None) -> socket.socket:
    """A socket that listens on `listening_address` alone; port 0 takes a free one.

    Raises UserError when the name does not resolve, or the address cannot be listened on.
    """
    address = listening_address(host, interface)
    try:
        return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise UserError(
            f"rank 0 cannot listen at {address}, port {port} ({error.strerror}): choose another MASTER_PORT, or set "
            "GLOO_SOCKET_IFNAME to the network interface that the other hosts reach"
        ) from None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _resolve(host: str, kind: socket.SocketKind) -> list[tuple[Any, ...]]:
    try:
        return socket.getaddrinfo(host, _DISCARD_PORT, type=kind)
    except socket.gaierror as error:
        raise UserError(
            f"{socket.gethostname()} cannot find the address of {host} ({error.strerror}): have the nodes' names put "
            "into DNS or /etc/hosts"
        ) from None


def network_addresses() -> Mapping[str, str]:
    """The interface of each IP address of this machine, zones (`%eth0`) left out."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        entry.address.partition("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    }


def source_address(family: int, target: tuple[Any, ...]) -> str | None:
    """The address that the system would send from to `target`; None if no route leads there."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
        except OSError:  # no route by this family
            return None
        return str(probe.getsockname()[0])
