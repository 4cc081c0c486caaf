"""Processes behind throttled links: network namespaces joined by a bridge, each with a token bucket in both directions.

It needs Linux, root, and the commands ip and tc. The host's own network is not touched: the bridge has a namespace too.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import call

DEVICE = "eth0"  # in each namespace
# Short queues of a sender, so that acknowledgements do not wait behind data; no pacing by the congestion control.
_TCP = {"tcp_limit_output_bytes": 131072, "tcp_congestion_control": "reno"}
_BURST, _QUEUE = "32kb", "16mb"  # the queue is long enough that no packet is dropped
_PACKET = 16384  # bytes; the token bucket cuts packets above its burst into frames, which costs much of a processor


@dataclass(frozen=True)
class Links:
    """Namespaces of `count` processes. prefix: of their names."""

    prefix: str
    count: int

    def namespace(self, rank: int) -> str:
        """The name of a rank's namespace."""
        return f"{self.prefix}r{rank}"

    @property
    def bridge(self) -> str:
        """The name of the bridge's namespace."""
        return f"{self.prefix}b"

    def inside(self, rank: int) -> list[str]:
        """Words before a command that run it in the namespace of a rank."""
        return ["ip", "netns", "exec", self.namespace(rank)]

    def throttle(self, rank: int, mbit: float) -> None:
        """Limit what a rank sends and what it receives to `mbit` * 10**6 bits per second each."""
        _limit(self.namespace(rank), DEVICE, mbit)
        _limit(self.bridge, f"port{rank}", mbit)


def address(rank: int) -> str:
    """The address of a rank."""
    return f"10.77.0.{rank + 1}"


def obstacle() -> str | None:
    """The reason why this machine cannot have throttled links; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} not found; install iproute2"
    links = Links(f"mwtry{os.getpid()}", 1)
    try:
        with contextlib.ExitStack() as stack:
            _make(links, stack)
            links.throttle(0, 100)
    except (subprocess.CalledProcessError, OSError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return f"this kernel does not allow it: {said[-1] if said else error}"
    return None


@contextlib.contextmanager
def throttled_links(count: int) -> Iterator[Links]:
    """Namespaces that are removed at the end, also after an error or an interrupt."""
    links = Links(f"mw{os.getpid()}", count)
    with contextlib.ExitStack() as stack:
        _make(links, stack)
        yield links


def _make(links: Links, stack: contextlib.ExitStack) -> None:
    _add(links.bridge, stack)
    _ip("-n", links.bridge, "link", "add", "br0", "type", "bridge")
    _ip("-n", links.bridge, "link", "set", "br0", "up")
    for rank in range(links.count):
        name, port = links.namespace(rank), f"port{rank}"
        _add(name, stack)
        _ip("link", "add", DEVICE, "netns", name, "type", "veth", "peer", "name", port, "netns", links.bridge)
        _ip("-n", name, "address", "add", f"{address(rank)}/24", "dev", DEVICE)
        for key, value in _TCP.items():
            _ip("netns", "exec", name, "sysctl", "-q", f"net.ipv4.{key}={value}")
        _ip("-n", name, "link", "set", DEVICE, "gso_max_size", _PACKET)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", DEVICE, "up")
        _ip("-n", links.bridge, "link", "set", port, "master", "br0", "up")


def _add(name: str, stack: contextlib.ExitStack) -> None:
    stack.callback(subprocess.run, ["ip", "netns", "delete", name], capture_output=True)
    _ip("netns", "add", name)


def _limit(namespace: str, device: str, mbit: float) -> None:
    bucket = ("tbf", "rate", f"{mbit}mbit", "burst", _BURST, "limit", _QUEUE)
    call(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket])


def _ip(*words: Any) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True)
