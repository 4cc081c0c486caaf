"""Compare the weights of all ranks: detect a flipped bit and name the rank."""

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.guards.step_guard import EndOfRun

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> Tensor:
    """The sum of a tensor's elements read as integers: int64 [] on its device. Any single bit flip changes it."""
    return tensor.reshape(-1).view(_INTEGER[tensor.element_size()]).sum(dtype=torch.int64)


def odd_ones(values: Sequence[Sequence[int]]) -> list[int]:
    """The ranks whose values differ from the majority; all ranks if there is no majority."""
    counts = Counter(map(tuple, values))
    common, number = counts.most_common(1)[0]
    if 2 * number <= len(values):
        return list(range(len(values)))
    return [rank for rank, value in enumerate(values) if tuple(value) != common]


def check_replicas(weights: dict[str, Tensor], hosts: Sequence[str], step: int, device: torch.device) -> None:
    """Compare the weights that should be equal on all ranks; a collective that blocks the host.

    Raises EndOfRun on every rank, with the ranks that differ and the first weight that differs.
    """
    if len(hosts) < 2 or not weights:
        return
    mine = torch.stack([checksum(tensor) for tensor in weights.values()]).to(device)
    gathered = [torch.empty_like(mine) for _ in hosts]
    dist.all_gather(gathered, mine)
    values = [sums.tolist() for sums in gathered]
    odd = odd_ones(values)
    if not odd:
        return
    name = next(name for name, sums in zip(weights, zip(*values, strict=True), strict=True) if len(set(sums)) > 1)
    said = ", ".join(f"rank {rank} (on {hosts[rank]})" for rank in odd)
    most = "the others" if len(odd) < len(hosts) else "each other"
    raise EndOfRun(
        f"after step {step}, the weights of {said} differ from {most}, first in {name}: memory or an arithmetic unit "
        "has failed there; take that machine out, and go on from the last checkpoint"
    )
