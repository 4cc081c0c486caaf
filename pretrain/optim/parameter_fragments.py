"""Parameter pieces: their places in the ranks' tensors, and sums over whole parameters computed from pieces."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.distributed import all_gather_json

_RUN = 1 << 18  # elements per fp32 partial sum: over millions, a CPU loses three digits


@dataclass(frozen=True)
class Piece:
    """Elements [start, start + numel) of the flattened parameter `name`, starting at `offset` in a flat tensor."""

    name: str
    start: int
    numel: int
    offset: int


@dataclass(frozen=True)
class Share:
    """The parameter pieces in each rank's tensor, for one tensor of the optimizer.

    A parameter is whole on every rank (no ZeRO), whole on one rank, or cut into pieces on several ranks.
    """

    by_rank: list[list[Piece]]
    rank: int = 0

    @property
    def own(self) -> list[Piece]:
        """The pieces in this rank's tensor."""
        return self.by_rank[self.rank]


def shares_of(pieces: Sequence[list[Piece]]) -> list[Share]:
    """Gather the shares of all ranks from this rank's pieces; a collective. Empty pieces are omitted."""
    own = [[astuple(piece) for piece in held if piece.numel] for held in pieces]
    ranks = [[[Piece(*fields) for fields in held] for held in those] for those in all_gather_json(own)]
    return [Share([held[number] for held in ranks], dist.get_rank()) for number in range(len(own))]


def view(tensor: Tensor, piece: Piece) -> Tensor:
    """View of a parameter piece [numel] in its tensor."""
    return tensor.view(-1).narrow(0, piece.offset, piece.numel)


class Segments:
    """The pieces of parameters in the tensors of a step, and sums over the whole parameters.

    Args:
        shares: of the tensors, in their order.
        numels: elements of each parameter.
        device: of the tensors.
    """

    def __init__(self, shares: Sequence[Share], numels: Mapping[str, int], device: torch.device):
        self._places = [(n, piece) for n, share in enumerate(shares) for piece in share.own]
        split = dict.fromkeys(
            piece.name
            for share in shares
            for held in share.by_rank
            for piece in held
            if piece.numel < numels[piece.name]
        )
        self._n_split, column = len(split), {name: number for number, name in enumerate(split)}
        pieces = [piece for _, piece in self._places]
        rows = [(row, column[piece.name]) for row, piece in enumerate(pieces) if piece.name in column]
        self._rows = torch.tensor([row for row, _ in rows], dtype=torch.long, device=device)
        self._columns = torch.tensor([place for _, place in rows], dtype=torch.long, device=device)
        self._runs = torch.tensor([-(-piece.numel // _RUN) for piece in pieces], dtype=torch.long, device=device)
        self.numels = torch.tensor([numels[piece.name] for piece in pieces], dtype=torch.float32, device=device)

    def views(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The pieces in these tensors."""
        return [view(tensors[number], piece) for number, piece in self._places]

    def scale_(self, tensors: Sequence[Tensor], factors: Tensor) -> None:
        """Multiply the pieces in these tensors by `factors` [pieces]."""
        if self._places:
            torch._foreach_mul_(self.views(tensors), list(factors.unbind()))

    def square_sums(self, *tensors: Sequence[Tensor]) -> Tensor:
        """For each list of tensors, the sum of squares over each whole parameter: fp32 [lists, pieces].

        A collective if parameters are cut; it sends one number per cut parameter.
        """
        sums = torch.stack([self._local(self.views(each)) for each in tensors])
        if self._n_split:
            totals = sums.new_zeros(len(tensors), self._n_split)
            totals.index_copy_(1, self._columns, sums.index_select(1, self._rows))
            totals = summed(totals)
            sums.index_copy_(1, self._rows, totals.index_select(1, self._columns))
        return sums

    def _local(self, views: list[Tensor]) -> Tensor:
        if not views:
            return self.numels  # [0]
        norms = torch._foreach_norm([run for each in views for run in each.split(_RUN)])
        squares = torch.stack(norms).square()
        return torch.segment_reduce(
            squares, "sum", lengths=self._runs, unsafe=True
        )  # unsafe: skips checks that wait for the device


def summed(values: Tensor) -> Tensor:
    """The sum over all ranks; a collective."""
    on_group = values.to(group_device(values))
    dist.all_reduce(on_group)
    return on_group.to(values.device)


def group_device(values: Tensor) -> torch.device:
    """Device of tensors for the process group. NCCL cannot send the CPU tensors of an offloaded optimizer."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else values.device
