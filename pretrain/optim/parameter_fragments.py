"""Parameter pieces: their places in the ranks' tensors, and sums over whole parameters computed from pieces."""

from collections import defaultdict
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
class RankPieces:
    """The parameter pieces in each rank's tensor, for one tensor of the optimizer.

    A parameter is whole on every rank (no ZeRO), whole on one rank, or cut into pieces on several ranks.
    """

    by_rank: list[list[Piece]]
    rank: int = 0

    @property
    def local(self) -> list[Piece]:
        """The pieces in this rank's tensor."""
        return self.by_rank[self.rank]


def shares_of(pieces: Sequence[list[Piece]]) -> list[RankPieces]:
    """Gather the shares of all ranks from this rank's pieces; a collective. Empty pieces are omitted."""
    own = [[astuple(piece) for piece in held if piece.numel] for held in pieces]
    ranks = [[[Piece(*fields) for fields in held] for held in those] for those in all_gather_json(own)]
    return [RankPieces([held[number] for held in ranks], dist.get_rank()) for number in range(len(own))]


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

    def __init__(self, shares: Sequence[RankPieces], numels: Mapping[str, int], device: torch.device):
        self._locations = [(n, piece) for n, share in enumerate(shares) for piece in share.local]
        everywhere = (piece for share in shares for held in share.by_rank for piece in held)
        split = dict.fromkeys(piece.name for piece in everywhere if piece.numel < numels[piece.name])
        self._n_split, column = len(split), {name: number for number, name in enumerate(split)}
        pieces = [piece for _, piece in self._locations]
        rows = [(row, column[piece.name]) for row, piece in enumerate(pieces) if piece.name in column]
        self._rows = torch.tensor([row for row, _ in rows], dtype=torch.long, device=device)
        self._columns = torch.tensor([location for _, location in rows], dtype=torch.long, device=device)
        self._runs = torch.tensor([-(-piece.numel // _RUN) for piece in pieces], dtype=torch.long, device=device)
        self.numels = torch.tensor([numels[piece.name] for piece in pieces], dtype=torch.float32, device=device)

    def views(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [view(tensors[number], piece) for number, piece in self._locations]

    def scale_(self, tensors: Sequence[Tensor], factors: Tensor) -> None:
        """Multiply the pieces in these tensors by `factors` [pieces]."""
        if self._locations:
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
        # unsafe: skips checks that wait for the device
        return torch.segment_reduce(squares, "sum", lengths=self._runs, unsafe=True)


def summed(values: Tensor) -> Tensor:
    """The sum over all ranks; a collective."""
    on_group = values.to(group_device(values))
    dist.all_reduce(on_group)
    return on_group.to(values.device)


def group_device(values: Tensor) -> torch.device:
    """Device of tensors for the process group. NCCL cannot send the CPU tensors of an offloaded optimizer."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else values.device


Location = tuple[int, Piece]  # a piece, and the number of the tensor that holds it


class Exchange:
    """Assignment of matrices to ranks, and the pieces to send for it. Only pieces of cut matrices are sent.

    A matrix that is whole on a rank (on every rank without ZeRO) is computed there. Cut matrices are distributed so
    that all ranks have about the same work.

    Args:
        shares: of the tensors of a step, in their order.
        shapes: [rows, columns] of each parameter.
        blocks: rows of the matrices in each parameter.
    """

    def __init__(
        self, shares: Sequence[RankPieces], shapes: Mapping[str, torch.Size], blocks: Mapping[str, Sequence[int]]
    ):
        self._shapes, self._rank = shapes, shares[0].rank
        ranks = len(shares[0].by_rank)
        held: dict[str, list[tuple[int, Location]]] = defaultdict(list)
        for number, share in enumerate(shares):
            for holder, pieces in enumerate(share.by_rank):
                for piece in pieces:
                    held[piece.name].append((holder, (number, piece)))
        costs = {name: _cost(blocks[name], shapes[name][1]) for name in held}
        self._whole: dict[str, Location] = {}
        load = [0] * ranks
        for name, locations in held.items():
            for holder, (number, piece) in locations:
                if piece.numel == shapes[name].numel():
                    load[holder] += costs.pop(name, 0)
                    if holder == self._rank:
                        self._whole[name] = (number, piece)
        workers = assign_jobs(costs, load)
        self.anything_cut = bool(workers)
        self._mine = [name for name, worker in workers.items() if worker == self._rank]
        self._stay: list[Location] = []
        self._leave: list[list[Location]] = [[] for _ in range(ranks)]  # by destination
        self._come: list[list[Piece]] = [[] for _ in range(ranks)]  # by source
        for holder, worker, location in (
            (h, worker, location) for name, worker in workers.items() for h, location in held[name]
        ):
            if holder == worker == self._rank:
                self._stay.append(location)
            elif holder == self._rank:
                self._leave[worker].append(location)
            elif worker == self._rank:
                self._come[holder].append(location[1])

    def collect(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """The matrices [rows, columns] assigned to this rank, by parameter; a collective if any are cut.

        Matrices that are whole in one of `tensors` are views of it.
        """
        whole = {name: view(tensors[number], piece) for name, (number, piece) in self._whole.items()}
        if self.anything_cut:
            example = tensors[0]
            parts = {name: example.new_empty(self._shapes[name].numel()) for name in self._mine}
            for number, piece in self._stay:
                _part(parts, piece).copy_(view(tensors[number], piece))
            leaving = [[view(tensors[number], piece) for number, piece in locations] for locations in self._leave]
            _send(leaving, [[_part(parts, piece) for piece in pieces] for pieces in self._come], example)
            whole |= parts
        return {name: matrix.view(self._shapes[name]) for name, matrix in whole.items()}

    def hand_back(self, matrices: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> None:
        """Write the changed matrices back to their tensors; a collective if any are cut."""
        if not self.anything_cut:
            return
        parts = {name: matrices[name].view(-1) for name in self._mine}
        for number, piece in self._stay:
            view(tensors[number], piece).copy_(_part(parts, piece))
        arriving = [[view(tensors[number], piece) for number, piece in locations] for locations in self._leave]
        _send([[_part(parts, piece) for piece in pieces] for pieces in self._come], arriving, tensors[0])


def assign_jobs(costs: Mapping[str, int], load: Sequence[int]) -> dict[str, int]:
    """Assign jobs with these costs to ranks with this `load`: the most expensive first, to the rank with the least."""
    total, ranks = list(load), {}
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        ranks[name] = min(range(len(total)), key=total.__getitem__)
        total[ranks[name]] += costs[name]
    return ranks


def _cost(blocks: Sequence[int], columns: int) -> int:
    """Multiplications of a Newton-Schulz step for matrices with these rows, up to a constant factor."""
    return sum(rows * columns * min(rows, columns) for rows in blocks)


def _part(parts: Mapping[str, Tensor], piece: Piece) -> Tensor:
    return parts[piece.name].narrow(0, piece.start, piece.numel)


def _send(leaving: list[list[Tensor]], arriving: list[list[Tensor]], example: Tensor) -> None:
    """Send `leaving` [n] to each rank, and receive `arriving` from each rank; a collective."""
    device = group_device(example)
    sent = torch.cat([example.new_empty(0), *(part for parts in leaving for part in parts)]).to(device)
    counts = [sum(part.numel() for part in parts) for parts in arriving]
    received = sent.new_empty(sum(counts))
    dist.all_to_all_single(received, sent, counts, [sum(part.numel() for part in parts) for parts in leaving])
    waiting = [part for parts in arriving for part in parts]
    for part, values in zip(waiting, received.split([part.numel() for part in waiting]), strict=True):
        part.copy_(values)
