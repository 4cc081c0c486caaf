"""Exchange of matrix pieces: assemble whole matrices, distribute them over the ranks, and return the results."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.optim.parameter_fragments import Piece, Share, group_device, view

Place = tuple[int, Piece]  # a piece, and the number of the tensor that holds it


class Exchange:
    """Assignment of matrices to ranks, and the pieces to send for it. Only pieces of cut matrices are sent.

    A matrix that is whole on a rank (on every rank without ZeRO) is computed there. Cut matrices are distributed so
    that all ranks have about the same work.

    Args:
        shares: of the tensors of a step, in their order.
        shapes: [rows, columns] of each parameter.
        blocks: number of matrices in each parameter.
    """

    def __init__(self, shares: Sequence[Share], shapes: Mapping[str, torch.Size], blocks: Mapping[str, int]):
        self._shapes, self._rank = shapes, shares[0].rank
        ranks = len(shares[0].by_rank)
        held: dict[str, list[tuple[int, Place]]] = defaultdict(list)
        for number, share in enumerate(shares):
            for holder, pieces in enumerate(share.by_rank):
                for piece in pieces:
                    held[piece.name].append((holder, (number, piece)))
        costs = {name: _cost(shapes[name], blocks[name]) for name in held}
        self._whole: dict[str, Place] = {}
        load = [0] * ranks
        for name, places in held.items():
            for holder, (number, piece) in places:
                if piece.numel == shapes[name].numel():
                    load[holder] += costs.pop(name, 0)
                    if holder == self._rank:
                        self._whole[name] = (number, piece)
        workers = deal(costs, load)
        self.anything_cut = bool(workers)
        self._mine = [name for name, worker in workers.items() if worker == self._rank]
        self._stay: list[Place] = []
        self._leave: list[list[Place]] = [[] for _ in range(ranks)]  # by destination
        self._come: list[list[Piece]] = [[] for _ in range(ranks)]  # by source
        for name, worker in workers.items():
            for holder, place in held[name]:
                self._route(holder, worker, place)

    def _route(self, holder: int, worker: int, place: Place) -> None:
        if holder == worker == self._rank:
            self._stay.append(place)
        elif holder == self._rank:
            self._leave[worker].append(place)
        elif worker == self._rank:
            self._come[holder].append(place[1])

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
            leaving = [[view(tensors[number], piece) for number, piece in places] for places in self._leave]
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
        arriving = [[view(tensors[number], piece) for number, piece in places] for places in self._leave]
        _send([[_part(parts, piece) for piece in pieces] for pieces in self._come], arriving, tensors[0])


def deal(costs: Mapping[str, int], load: Sequence[int]) -> dict[str, int]:
    """Assign each job to a rank with balanced work: the most expensive first, to the rank with the least work.

    Args:
        costs: cost of each job.
        load: previous work of each rank.
    """
    total, found = list(load), {}
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        found[name] = min(range(len(total)), key=total.__getitem__)
        total[found[name]] += costs[name]
    return found


def _cost(shape: torch.Size, blocks: int) -> int:
    """Multiplications of a Newton-Schulz step, up to a constant factor."""
    rows, columns = shape[0] // blocks, shape[1]
    return blocks * rows * columns * min(rows, columns)


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
