"""Checks of the hostfile and of all hosts, before any process is started."""

import contextlib
import ipaddress
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from data_prep.common.errors import UserError, working_directory
from data_prep.common.reading import read_text
from launchers.hosts.host_probe import HostFacts, common_facts
from launchers.hosts.ssh import Conversation, HostsJob

_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s+slots=([0-9]{1,9})")  # ssh must not take a host name for an option
_MAX_BYTES = 16 << 20
_SHOWN = 80  # characters of a hostfile line in a message
T = TypeVar("T")


def read_hostfile(path: Path, nodes: int, processes: int) -> list[str]:
    """Read the first `nodes` hosts of a hostfile. Each host needs slots for `processes` processes.

    Raises:
        UserError: for a line that is not `HOST slots=N`, a repeated host, a host with too few slots, or too few hosts.
    """
    lines = read_text(path, _MAX_BYTES, f"correct --hostfile{working_directory(path)}").splitlines()
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not (text := line.partition("#")[0].strip()):
            continue
        if not (match := _LINE.fullmatch(text)):
            raise UserError(
                f"{path} line {number}: {text[:_SHOWN]!r} is not of the form `HOST slots=N`. "
                "Write for example node1 slots=8."
            )
        if match[1] in slots:
            raise UserError(f"{path} line {number}: {match[1]} is there twice; give each host one line")
        slots[match[1]] = int(match[2])
    if len(slots) < nodes:
        named = ", ".join(slots) or "none"
        raise UserError(f"{path} has {len(slots)} hosts ({named}), and --nodes is {nodes}; add hosts, or lower --nodes")
    hosts = list(slots)[:nodes]
    for host in hosts:
        if slots[host] < processes:
            raise UserError(
                f"{path}: {host} has {slots[host]} slots, and --gpus-per-node is {processes}; "
                "give every host as many slots, or lower --gpus-per-node"
            )
    return hosts


def check_hosts(job: HostsJob) -> tuple[str, int]:
    """Check all hosts in parallel. Returns the address and a free port of the first host, for rank 0.

    Raises:
        UserError: for the first host that is unreachable or differs, with the reason.
    """
    with contextlib.ExitStack() as held:
        talks = {host: Conversation(job, host) for host in job.hosts}
        for talk in talks.values():
            held.callback(talk.close)
        token = held.enter_context(_token(job.run_dir))
        asked = {"config": str(job.config), "overrides": job.overrides, "token": str(token)}
        found = _each(talks, lambda talk: talk.ask(HostFacts, "describe", **asked))
        here = common_facts(job.config, job.overrides, token)
        for host, answer in found.items():
            if problem := disagreement(host, answer, here, job):
                raise UserError(problem)
        first, *others = job.hosts
        address = master_address(found, first)
        port: int = talks[first].ask(int, "listen", address=address)
        rest = {host: talks[host] for host in others}
        _each(rest, lambda talk: talk.ask(NoneType, "connect", address=address, port=port))
        return address, port


def disagreement(host: str, answer: HostFacts, here: dict[str, Any], job: HostsJob) -> str | None:
    """Reason why a host cannot take part; None if it can.

    Args:
        here: facts of this machine that must be the same everywhere.
    """
    for name, value in here.items():
        theirs = answer.common.get(name)
        if theirs == value:
            continue
        if name == "run folder":
            return f"{host} sees another {job.run_dir} than this machine: the run folder must be on shared storage"
        if name in ("config", "data set", "version of maskwright"):
            return f"{host} has another {name} than this machine; give every host the same files"
        return f"{host} has {name} {theirs or 'not at all'} and this machine {value or 'not at all'}; install the same"
    if not answer.writable:
        return f"{host} may not write into {job.run_dir}; it must be writable on every host"
    if not job.cpu and answer.gpus < job.processes:
        return f"{host} has {answer.gpus} GPUs, and --gpus-per-node is {job.processes}; lower it, or train with --cpu"
    return None


def master_address(found: dict[str, HostFacts], first: str) -> str:
    """The first host's address for the other hosts.

    It is the address that ssh used. For this machine it may be a loopback address. The address is then the one from
    which the other hosts received the ssh connection.
    """
    reached = found[first].server
    if not ipaddress.ip_address(reached.partition("%")[0]).is_loopback or len(found) == 1:
        return reached
    return next(answer.client for host, answer in found.items() if host != first)


def _each(talks: dict[str, Conversation], ask: Callable[[Conversation], T]) -> dict[str, T]:
    """Ask all hosts in parallel. Returns the answers by host; raises the error of the first failed host."""
    with ThreadPoolExecutor(max(1, len(talks))) as pool:
        return dict(zip(talks, pool.map(ask, talks.values()), strict=True))


@contextlib.contextmanager
def _token(run_dir: Path) -> Iterator[Path]:
    """A file with random content in the run folder, which is created if necessary."""
    place = next(folder for folder in (run_dir, *run_dir.parents) if folder.is_dir())
    try:
        file = tempfile.NamedTemporaryFile("w", dir=place, prefix=".maskwright-check-")  # noqa: SIM115 (below)
    except OSError as error:
        raise UserError(f"{run_dir}: the run folder cannot be made ({error.strerror})") from None
    with file:
        file.write(secrets.token_hex())
        file.flush()
        yield Path(file.name)
