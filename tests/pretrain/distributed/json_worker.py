"""One of two ranks that exchange JSON; then one of them is hostile and sends a pickle.

`python -m tests.pretrain.distributed.json_worker FOLDER`
"""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pretrain.distributed import rank_agreement, tcp_store


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.marker),)


def main(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=tcp_store.INIT_METHOD)
    rank = dist.get_rank()
    value = {"rank": rank, "text": "é" * 100 * rank, "list": [1.5, None, True]}
    assert rank_agreement.all_gather_json(value) == [
        value | {"rank": 0, "text": ""},
        value | {"rank": 1, "text": "é" * 100},
    ]
    assert rank_agreement.broadcast_json((rank, "x" * 10)) == [0, "x" * 10]
    assert rank_agreement.broadcast_json(None) is None

    payload, usual = pickle.dumps(Payload(folder / f"unpickled-{rank}")), rank_agreement._encoded
    for hostile in (0, 1):
        rank_agreement._encoded = sends(payload) if rank == hostile else usual
        with pytest.raises(RuntimeError, match=f"rank {hostile} sent something else than JSON"):
            rank_agreement.all_gather_json(value)
    rank_agreement._encoded = sends(payload) if rank == 0 else usual
    with pytest.raises(RuntimeError, match="rank 0 sent something else than JSON"):
        rank_agreement.broadcast_json(value)
    assert list(folder.iterdir()) == []
    dist.barrier()
    dist.destroy_process_group()


def sends(content: bytes) -> Callable[[Any], torch.Tensor]:
    """What a rank sends instead of JSON."""
    return lambda _: torch.frombuffer(bytearray(content), dtype=torch.uint8)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
