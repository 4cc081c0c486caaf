"""That hostfile, config and hosts agree, before anything is started on any of them."""

import contextlib
import ipaddress
import secrets
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from data_prep.errors import UserError
from launchers.hosts.job import HostsJob
from launchers.hosts.probe import HostFacts, common_facts
from launchers.hosts.remote import Conversation

T = TypeVar("T")


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
        asked = {"config": str(job.config), "overrides": job.overrides, "token": str(token)}
        found = _each(talks, lambda talk: talk.ask(HostFacts, "describe", **asked))
        here = common_facts(job.config, job.overrides, token)
        for host, answer in found.items():
            if problem := disagreement(host, answer, here, job):
                raise UserError(problem)
        first, *others = job.hosts
        address = master_address(found, first)
        port: int = talks[first].ask(int, "listen", address=address)
        _each(
            {host: talks[host] for host in others}, lambda talk: talk.ask(None, "connect", address=address, port=port)
        )
        return address, port


def disagreement(host: str, answer: HostFacts, here: dict[str, Any], job: HostsJob) -> str | None:
    """What keeps a host from taking part, as one sentence; None if nothing does.

    Args:
        here: the common facts of this machine.
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
    """The first host's address, as the others can use it.

    That is where ssh reached it. If it is this very machine, that may be a loopback address; then the others know its
    address as that from which ssh came to them.
    """
    reached = found[first].server
    if not ipaddress.ip_address(reached.partition("%")[0]).is_loopback or len(found) == 1:
        return reached
    return next(answer.client for host, answer in found.items() if host != first)


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
