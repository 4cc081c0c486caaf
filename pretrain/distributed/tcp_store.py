"""TCP store for the rendezvous: rank 0 listens on one address, not on all interfaces."""

import os
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import Store, TCPStore
from torch.distributed.rendezvous import register_rendezvous_handler

from pretrain.distributed.network_interfaces import listen

INIT_METHOD = "maskwright://"
"""For `init_process_group`: like `env://`, with the store of this module."""


def open_store(host: str, port: int, rank: int, world_size: int, timeout: timedelta) -> TCPStore:
    """Join the store of rank 0, which listens on its address `host`, or on the address of GLOO_SOCKET_IFNAME.

    Raises:
        UserError: on rank 0, if it cannot listen there.
    """
    if rank != 0:
        return TCPStore(host, port, world_size, False, timeout, multi_tenant=True)
    descriptor = listen(host, port, os.environ.get("GLOO_SOCKET_IFNAME")).detach()  # the store closes it
    return TCPStore(host, port, world_size, True, timeout, multi_tenant=True, master_listen_fd=descriptor)


def _rendezvous(url: str, timeout: timedelta, **_: object) -> Iterator[tuple[Store, int, int]]:
    """The rendezvous handler that PyTorch calls for INIT_METHOD."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    yield open_store(address, port, rank, world_size, timeout), rank, world_size


register_rendezvous_handler("maskwright", _rendezvous)
