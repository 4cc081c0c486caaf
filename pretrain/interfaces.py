"""Which network interface of this machine leads to another one."""

import socket
from collections.abc import Mapping
from typing import Any

import psutil

from data_prep.errors import UserError

_DISCARD_PORT = 9  # to connect a datagram socket sends nothing; the system only chooses the route


def interface_to(host: str) -> str:
    """The interface whose address the system would send from.

    Raises:
        UserError: when the name does not resolve, nothing leads there, or no interface has that address.
    """
    try:
        found = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise UserError(
            f"{socket.gethostname()} cannot find the address of {host} ({error.strerror}): have the nodes' names put "
            "into DNS or /etc/hosts"
        ) from None
    interfaces = addresses()
    for family, _, _, _, target in found:
        own = _source_address(family, target)
        name = interfaces.get(own.partition("%")[0]) if own else None
        if name:
            return name
    tried = ", ".join(str(target[0]) for *_, target in found)
    raise UserError(
        f"no network interface of {socket.gethostname()} leads to {host} ({tried}): name the one that the nodes share "
        "with --interface"
    )


def addresses() -> Mapping[str, str]:
    """The interface of each IP address of this machine, zones (`%eth0`) left out."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        one.address.partition("%")[0]: name
        for name, found in psutil.net_if_addrs().items()
        for one in found
        if one.family in families
    }


def _source_address(family: int, target: tuple[Any, ...]) -> str | None:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
        except OSError:  # no route by this family
            return None
        return str(probe.getsockname()[0])
