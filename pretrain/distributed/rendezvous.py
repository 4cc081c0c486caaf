"""Rendezvous of the processes of a run: the environment that the launcher sets, and a TCP store on one address.

DeepSpeed's launcher and torchrun set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. mpirun uses other names
for the first three, and does not set the last two. A PyTorchJob of Kubernetes starts one process in each pod, and sets
no LOCAL_RANK. torchrun's agent itself listens at MASTER_PORT, so its ranks use the agent's store.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import register_rendezvous_handler

from data_prep.common.errors import UserError
from pretrain.distributed.network_interfaces import interface_to, listen

_OPENMPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
_LOOPBACK = "127.0.0.1"
_PORT = "29500"
"""Where rank 0 listens unless the launcher says otherwise; DeepSpeed's own default."""
_SCHEME = "maskwright"


def prepare_rendezvous(environment: MutableMapping[str, str]) -> str:
    """Add what PyTorch's rendezvous needs, and the network interface that leads to rank 0. On one host: loopback.

    Returns:
        The `init_method` for `init_process_group`: like `env://`, with the store of this module.

    Raises UserError if a required variable is missing.
    """
    for name, of_openmpi in _OPENMPI.items():
        if of_openmpi in environment:
            environment.setdefault(name, environment[of_openmpi])
    if size := environment.get("LOCAL_WORLD_SIZE"):  # torchrun's name
        environment.setdefault("LOCAL_SIZE", size)
    _check(environment)
    environment.setdefault("LOCAL_RANK", "0")
    environment.setdefault("MASTER_PORT", _PORT)
    if environment.get("LOCAL_SIZE") == environment["WORLD_SIZE"]:  # one host
        environment["MASTER_ADDR"] = _LOOPBACK
    open_names = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if not environment.get(name)]
    with contextlib.suppress(UserError):  # PyTorch's own choice may do
        environment.update(dict.fromkeys(open_names, interface_to(environment["MASTER_ADDR"])))
    return f"{_SCHEME}://"


def _check(environment: Mapping[str, str]) -> None:
    """Refuse an environment that no launcher made, or where mpirun does not know the address of rank 0.

    Raises:
        UserError: naming what is missing, or a PyTorchJob that wants several processes in a pod.
    """
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing == ["LOCAL_RANK"]:
        if (number := environment.get("PET_NPROC_PER_NODE", "1")) != "1":
            raise UserError(
                f"LOCAL_RANK is not set, and PET_NPROC_PER_NODE is {number}: start several processes in a pod with "
                "`torchrun -m pretrain.train --config CONFIG`, or set nprocPerNode to 1"
            )
        return
    if missing == ["MASTER_ADDR"]:
        raise UserError(
            "MASTER_ADDR is not set, so that the processes cannot find rank 0: give mpirun "
            "`-x MASTER_ADDR=ADDRESS` with the address of the hostfile's first host (deepspeed: in --launcher_args)"
        )
    if missing:
        raise UserError(
            f"{', '.join(missing)} not set: pretrain.train is one process of a run, which `maskwright train`, "
            "`maskwright launch`, `deepspeed --module pretrain.train` or `torchrun -m pretrain.train` starts"
        )


def open_store(host: str, port: int, rank: int, world_size: int, timeout: timedelta) -> TCPStore:
    """Join the store of rank 0, which listens on its address `host`, or on the address of GLOO_SOCKET_IFNAME.

    Raises UserError on rank 0, if it cannot listen there.
    """
    if rank != 0:
        return TCPStore(host, port, world_size, False, timeout, multi_tenant=True)
    descriptor = listen(host, port, os.environ.get("GLOO_SOCKET_IFNAME")).detach()  # the store closes it
    return TCPStore(host, port, world_size, True, timeout, multi_tenant=True, master_listen_fd=descriptor)


def _rendezvous(url: str, timeout: timedelta, **_: object) -> Iterator[tuple[Store, int, int]]:
    """The rendezvous handler that PyTorch calls for the init_method."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = TCPStore(address, port, world_size, False, timeout, multi_tenant=True)
        yield PrefixStore(f"maskwright/{os.environ['TORCHELASTIC_RESTART_COUNT']}", store), rank, world_size
        return
    yield open_store(address, port, rank, world_size, timeout), rank, world_size


register_rendezvous_handler(_SCHEME, _rendezvous)
