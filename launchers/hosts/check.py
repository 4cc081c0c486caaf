"""That hostfile, config and hosts agree, before anything is started on any of them."""

import contextlib
import ipaddress
import secrets
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from data_prep.errors import UserError
from data_prep.typed import typed
from launchers.hosts.job import HostsJob
from launchers.hosts.probe import facts
from launchers.hosts.remote import Conversation, not_understood

T = TypeVar("T")


@dataclass(frozen=True)
class OwnFacts:
    """What launchers.hosts.probe.own_facts gives."""

    gpus: int
    client: str
    server: str
    writable: bool


@dataclass(frozen=True)
class Description:
    """A host's answer to "describe"."""

    common: dict[str, str | None]
    own: OwnFacts


@dataclass(frozen=True)
class ListeningPort:
    """A host's answer to "listen"."""

    port: int


def check_hosts(job: HostsJob) -> tuple[str, int]:
    """Ask every host, all at once; the address and a free port of the first host, where rank 0 is to listen.

    Raises:
        UserError: naming the first host that cannot be reached, or differs, and how.
    """
    with contextlib.ExitStack() as held:
        talks = {host: Conversation(job, host, "launchers.hosts.probe") for host in job.hosts}
        for talk in talks.values():
            held.callback(talk.close)
        token = held.enter_context(_token(job.run_dir))
        question = {"config": str(job.config), "overrides": job.overrides, "token": str(token)}
        found = _each(talks, lambda talk: talk.ask({"question": "describe", **question}))
        for host, answer in found.items():
            check_description(host, answer)
        here = facts(job.config, job.overrides, token)
        for host, answer in found.items():
            if problem := disagreement(host, answer, here, job):
                raise UserError(problem)
        first, *others = job.hosts
        address = master_address({host: answer["own"] for host, answer in found.items()}, first)
        port = port_of(first, talks[first].ask({"question": "listen", "address": address}))
        connect = {"question": "connect", "address": address, "port": port}
        _each({host: talks[host] for host in others}, lambda talk: talk.ask(connect))
        return address, port


def check_description(host: str, answer: dict[str, Any]) -> None:
    """Raise UserError unless it is a Description, with addresses of the ssh connection."""
    try:
        own = typed(Description, answer).own
        for address in (own.client, own.server):
            ipaddress.ip_address(address.partition("%")[0])
    except ValueError as error:
        raise not_understood(host, error) from None


def port_of(host: str, answer: dict[str, Any]) -> int:
    """The port in an answer; raises UserError if there is none."""
    try:
        port: int = typed(ListeningPort, answer).port
        if not 0 < port < 1 << 16:
            raise ValueError(f"its port is {port}")
    except ValueError as error:
        raise not_understood(host, error) from None
    return port


def disagreement(host: str, answer: dict[str, Any], here: dict[str, Any], job: HostsJob) -> str | None:
    """What keeps a host from taking part, as one sentence; None if nothing does.

    Args:
        answer: what its probe found, `common` and `own`.
        here: what this machine's probe found, as `common`.
    """
    for name, value in here.items():
        theirs = answer["common"].get(name)
        if theirs == value:
            continue
        if name == "run folder":
            return f"{host} sees another {job.run_dir} than this machine: the run folder must be on shared storage"
        if name in ("config", "data set", "version of maskwright"):
            return f"{host} has another {name} than this machine; give every host the same files"
        return f"{host} has {name} {theirs or 'not at all'} and this machine {value or 'not at all'}; install the same"
    if not answer["own"]["writable"]:
        return f"{host} may not write into {job.run_dir}; it must be writable on every host"
    gpus = answer["own"]["gpus"]
    if not job.cpu and gpus < job.processes:
        return f"{host} has {gpus} GPUs, and --gpus-per-node is {job.processes}; lower it, or train with --cpu"
    return None


def master_address(own: dict[str, dict[str, Any]], first: str) -> str:
    """The first host's address, as the others can use it.

    That is where ssh reached it. If it is this very machine, that may be a loopback address; then the others know its
    address as that from which ssh came to them.
    """
    reached = str(own[first]["server"])
    if not ipaddress.ip_address(reached.partition("%")[0]).is_loopback or len(own) == 1:
        return reached
    return str(next(answer["client"] for host, answer in own.items() if host != first))


def _each(talks: dict[str, Conversation], ask: Callable[[Conversation], T]) -> dict[str, T]:
    """Ask all hosts at once; the answers by host, or the first host's failure in their order."""
    with ThreadPoolExecutor(max(1, len(talks))) as pool:
        return dict(zip(talks, pool.map(ask, talks.values()), strict=True))


@contextlib.contextmanager
def _token(run_dir: Path) -> Iterator[Path]:
    """A file of random content in the run folder, or where it is to be made."""
    place = next(folder for folder in (run_dir, *run_dir.parents) if folder.is_dir())
    try:
        file = tempfile.NamedTemporaryFile("w", dir=place, prefix=".maskwright-check-")  # noqa: SIM115 (below)
    except OSError as error:
        raise UserError(f"{run_dir}: the run folder cannot be made ({error.strerror})") from None
    with file:
        file.write(secrets.token_hex())
        file.flush()
        yield Path(file.name)
