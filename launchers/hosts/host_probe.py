"""Probe of a host: `python -m launchers.hosts.host_probe` answers questions that arrive as lines of JSON."""

import hashlib
import ipaddress
import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.packages import installed_version
from launchers.hosts.ssh import MARK
from pretrain.distributed import listen

PACKAGES = ("torch", "deepspeed", "transformers", "triton", "numpy")
_CODE = Path(__file__).resolve().parents[2]
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class HostFacts:
    """A host's answer to "describe".

    Attributes:
        common: facts that must be the same on every host, by description.
        client, server: both addresses of the ssh connection.
        writable: whether the host can write to the run folder.
    """

    common: dict[str, str | None]
    gpus: int
    client: str
    server: str
    writable: bool

    def __post_init__(self) -> None:
        for address in (self.client, self.server):
            ipaddress.ip_address(address.partition("%")[0])


def common_facts(config: Path, overrides: list[str], token: Path) -> dict[str, Any]:
    """Facts that must be the same on every host: JSON values by description.

    Raises:
        UserError: if the config or its data sets cannot be read here.
    """
    from pretrain.config import load_config
    from pretrain.data import Sources

    settings = load_config(config, overrides)
    data = Sources.open(settings)
    valid = data.open_held_out(settings.data)
    return {
        "Python": platform.python_version(),
        **{package: installed_version(package) for package in PACKAGES},
        "version of maskwright": _code_digest(),
        "config": hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:12],
        "data set": f"{data.fingerprint} {valid.manifest.fingerprint if valid else ''}".strip(),
        "run folder": token.read_text() if token.exists() else "not the shared one",
    }


def _code_digest() -> str:
    """Digest of this project's sources, installed or not."""
    digest = hashlib.sha256()
    for package in ("data_prep", "pretrain", "launchers"):
        for path in sorted((_CODE / package).rglob("*.py")):
            digest.update(f"{path.relative_to(_CODE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _describe(config: str, overrides: list[str], token: str) -> dict[str, Any]:
    from launchers.local import gpu_count

    common = common_facts(Path(config), overrides, Path(token))
    client, _, server, _ = os.environ["SSH_CONNECTION"].split()
    return asdict(HostFacts(common, gpu_count(), client, server, os.access(Path(token).parent, os.W_OK)))


def _listen(held: list[socket.socket], address: str) -> int:
    """Open a port for rank 0 until this process exits."""
    held.append(listen(address, 0, None))
    return int(held[-1].getsockname()[1])


def _connect(address: str, port: int) -> None:
    try:
        socket.create_connection((address, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"it cannot reach rank 0 at {address} ({error.strerror or error}): the hosts must accept connections from "
            "each other at every port, and not ssh alone"
        ) from None


def main() -> None:
    """Answer questions until standard input ends."""
    held: list[socket.socket] = []
    answers: dict[str, Callable[..., Any]] = {
        "describe": _describe,
        "listen": lambda address: _listen(held, address),
        "connect": _connect,
    }
    for line in sys.stdin:
        question = json.loads(line)
        try:
            reply = {"value": answers[question.pop("question")](**question)}
        except UserError as error:
            reply = {"error": str(error)}
        print(MARK + json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
