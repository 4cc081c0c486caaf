"""Ways to let a model write: mask-predict and Gibbs sampling for masked ones, left to right for causal ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from evaluation.generation.token_sampling import Draws

Predict = Callable[[Tensor], Tensor]
"""ids [B, S] int64 -> logits [B, S, V], those of an id being at its place."""

_ORDER = 1  # the purpose of draws that order positions; 0 is for tokens


@dataclass(frozen=True)
class DecodingStep:
    """A state of the texts: ids [B, S] int64, and which of them were drawn in this step, bool [B, S]."""

    ids: Tensor
    drawn: Tensor


def masks_left(free: int, iteration: int, iterations: int) -> int:
    """How many of `free` positions mask-predict masks in an iteration, 0 being the first: all, then linearly fewer."""
    return -(-free * (iterations - iteration) // iterations)


def mask_predict(predict: Predict, start: Tensor, mask: int, iterations: int, draws: Draws) -> Iterator[DecodingStep]:
    """Fill all masks at once, then mask and fill anew those that the model was the least sure of, ever fewer.

    Ghazvininejad, Levy, Liu and Zettlemoyer, "Mask-Predict: parallel decoding of conditional masked language models",
    EMNLP 2019 (arXiv:1904.09324). A token that is not masked again keeps the probability with which it was drawn. The
    paper takes the likeliest ids, as a temperature of 0 does.

    Args:
        start: [B, S] int64, with `mask` at the positions to fill, the same in each row.
    """
    ids = start.clone()
    positions = torch.nonzero(start[0] == mask)[:, 0]
    sure = torch.zeros(len(ids), len(positions), dtype=torch.float64)
    for iteration in range(iterations):
        again = sure.argsort(dim=1, stable=True)[:, : masks_left(len(positions), iteration, iterations)]
        places = positions[again]
        ids.scatter_(1, places, mask)
        row = torch.arange(len(ids))[:, None].expand_as(places)
        uniform = draws.uniform(ids.shape[0], ids.shape[1], iteration)[row, places]
        found, probability = draws.choose(predict(ids)[row, places].flatten(0, 1), uniform.flatten())
        ids = ids.scatter(1, places, found.view_as(places))
        sure = sure.scatter(1, again, probability.view_as(places))
        yield DecodingStep(ids.clone(), torch.zeros_like(ids, dtype=torch.bool).scatter(1, places, True))


def gibbs(predict: Predict, start: Tensor, mask: int, iterations: int, draws: Draws) -> Iterator[DecodingStep]:
    """Draw one position after the other, each time given all others, in sweeps over all of them in random order.

    Wang and Cho, "BERT has a mouth, and it must speak: BERT as a Markov random field language model", NeuralGen 2019
    (arXiv:1902.04094). As Cho's later note says, the model is no Markov random field: its conditional distributions
    need not belong to any joint one. So the chain need not have the distribution of a model of text as its limit, nor
    is that limit, if there is one, independent of the order. In the first sweep, positions not yet drawn are [MASK].

    Args: as mask_predict; an iteration is a sweep.
    """
    ids = start.clone()
    positions = torch.nonzero(start[0] == mask)[:, 0]
    row = torch.arange(len(ids))
    for sweep in range(iterations):
        before = ids.clone()
        order = draws.uniform(ids.shape[0], ids.shape[1], sweep, _ORDER)[:, positions].argsort(dim=1, stable=True)
        uniform = draws.uniform(ids.shape[0], ids.shape[1], sweep)
        for place in positions[order].unbind(dim=1):
            ids[row, place] = mask
            ids[row, place], _ = draws.choose(predict(ids)[row, place], uniform[row, place])
        yield DecodingStep(ids.clone(), ids != before)


def left_to_right(predict: Predict, start: Tensor, length: int, draws: Draws) -> Iterator[DecodingStep]:
    """Append `length` tokens to texts [B, S], each drawn given those before it: what a causal model is for.

    Its logits at a place are those of the id that follows; those of the last place are enough.
    """
    ids = start
    for _ in range(length):
        uniform = draws.uniform(len(ids), ids.shape[1] + 1, 0)[:, -1]
        found, _ = draws.choose(predict(ids)[:, -1], uniform)
        ids = torch.cat([ids, found[:, None]], dim=1)
        drawn = torch.zeros_like(ids, dtype=torch.bool)
        drawn[:, -1] = True
        yield DecodingStep(ids, drawn)
