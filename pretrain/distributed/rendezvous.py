"""Rendezvous of the processes of a run: complete and check the environment that the launcher sets.

DeepSpeed's launcher sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. mpirun uses other names for the
first three, and does not set the last two.
"""

import contextlib
from collections.abc import Mapping, MutableMapping

from data_prep.errors import UserError
from pretrain.distributed.network_interfaces import interface_to

_OPENMPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
LOOPBACK = "127.0.0.1"
_PORT = "29500"
"""Where rank 0 listens unless the launcher says otherwise; DeepSpeed's own default."""


def complete(environment: MutableMapping[str, str]) -> None:
    """Add what PyTorch's rendezvous needs, and the network interface that leads to rank 0. On one host: loopback.

    Raises:
        UserError: if a required variable is missing.
    """
    for name, of_openmpi in _OPENMPI.items():
        if of_openmpi in environment:
            environment.setdefault(name, environment[of_openmpi])
    check(environment)
    environment.setdefault("MASTER_PORT", _PORT)
    if environment.get("LOCAL_SIZE") == environment["WORLD_SIZE"]:  # one host
        environment["MASTER_ADDR"] = LOOPBACK
    open_names = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if not environment.get(name)]
    with contextlib.suppress(UserError):  # PyTorch's own choice may do
        environment.update(dict.fromkeys(open_names, interface_to(environment["MASTER_ADDR"])))


def local_processes(environment: Mapping[str, str]) -> int:
    """The number of processes of the run on this host; 1 if no launcher sets it."""
    number = environment.get("LOCAL_SIZE") or environment.get(_OPENMPI["LOCAL_SIZE"], "")
    return int(number) if number.isdecimal() and int(number) > 0 else 1


def check(environment: Mapping[str, str]) -> None:
    """Refuse an environment that no launcher made, or where mpirun does not know the address of rank 0.

    Raises:
        UserError: naming what is missing.
    """
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing == ["MASTER_ADDR"]:
        raise UserError(
            "MASTER_ADDR is not set, so that the processes cannot find rank 0: give mpirun "
            "`-x MASTER_ADDR=ADDRESS` with the address of the hostfile's first host (deepspeed: in --launcher_args)"
        )
    if missing:
        raise UserError(
            f"{', '.join(missing)} not set: pretrain.train is one process of a run, which `maskwright train`, "
            "`maskwright launch` or `deepspeed --module pretrain.train` starts"
        )
