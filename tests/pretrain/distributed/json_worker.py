"""One of two ranks that exchange JSON; then one of them is hostile and sends a pickle.

`python -m tests.pretrain.distributed.json_worker FOLDER`
"""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pretrain.distributed import all_gather_json, prepare_rendezvous


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.marker),)


def main(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=prepare_rendezvous(os.environ))
    rank = dist.get_rank()
    value = {"rank": rank, "text": "é" * 100 * rank, "list": [1.5, None, True]}
    assert all_gather_json(value) == [value | {"rank": 0, "text": ""}, value | {"rank": 1, "text": "é" * 100}]
    assert all_gather_json((rank, "x" * 10))[0] == [0, "x" * 10]
    assert all_gather_json(None) == [None, None]

    payload = pickle.dumps(Payload(folder / f"unpickled-{rank}"))
    for hostile in (0, 1):
        if rank == hostile:
            send(payload)
        else:
            with pytest.raises(RuntimeError, match=f"rank {hostile} sent something else than JSON"):
                all_gather_json(value)
    assert list(folder.iterdir()) == []
    dist.barrier()
    dist.destroy_process_group()


def send(content: bytes) -> None:
    """Send other bytes where all ranks send JSON: their number, then the bytes."""
    own = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(own)]))
    padded = own.new_zeros(int(max(sizes)))
    padded[: len(own)] = own
    dist.all_gather([torch.empty_like(padded) for _ in sizes], padded)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
