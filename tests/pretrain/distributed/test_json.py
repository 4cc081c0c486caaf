"""JSON exchange between ranks; then one of them is hostile and sends a pickle."""

import pickle

import pytest
import torch
import torch.distributed as dist

from pretrain.distributed import all_gather_json
from tests.support.ranks import check_on_ranks


def exchange() -> None:
    rank = dist.get_rank()
    value = {"rank": rank, "text": "é" * 100 * rank, "list": [1.5, None, True]}
    assert all_gather_json(value) == [value | {"rank": 0, "text": ""}, value | {"rank": 1, "text": "é" * 100}]
    assert all_gather_json((rank, "x" * 10))[0] == [0, "x" * 10]
    assert all_gather_json(None) == [None, None]

    for hostile in (0, 1):
        if rank == hostile:
            send(pickle.dumps(value))
        else:
            with pytest.raises(RuntimeError, match=f"rank {hostile} sent something else than JSON"):
                all_gather_json(value)


def send(content: bytes) -> None:
    """Send other bytes where all ranks send JSON: their number, then the bytes."""
    own = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(own)]))
    padded = own.new_zeros(int(max(sizes)))
    padded[: len(own)] = own
    dist.all_gather([torch.empty_like(padded) for _ in sizes], padded)


def test_ranks_exchange_json_and_load_no_pickle():
    check_on_ranks(exchange, 2)
