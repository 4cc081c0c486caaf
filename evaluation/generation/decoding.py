"""Decoding methods: mask-predict and Gibbs sampling for masked models, left to right for causal models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from evaluation.generation.token_sampling import Draws

Predict = Callable[[Tensor], Tensor]
"""ids [B, S] int64 -> logits [B, S, V]."""

_ORDER = 1  # the purpose of draws that order positions; 0 is for tokens


@dataclass(frozen=True)
class DecodingStep:
    """Texts after a step: ids [B, S] int64. drawn [B, S] bool: the ids drawn in this step."""

    ids: Tensor
    drawn: Tensor


def masks_left(free: int, iteration: int, iterations: int) -> int:
    """Number of positions that mask-predict masks in an iteration: all `free` ones at 0, then linearly fewer."""
    return -(-free * (iterations - iteration) // iterations)


def mask_predict(predict: Predict, start: Tensor, mask: int, iterations: int, draws: Draws) -> Iterator[DecodingStep]:
    """Fill all masks in parallel, then repeatedly mask and refill the least probable tokens, fewer each time.

    Ghazvininejad, Levy, Liu and Zettlemoyer, "Mask-Predict: parallel decoding of conditional masked language models",
    EMNLP 2019 (arXiv:1904.09324). A token that stays unmasked keeps the probability of its draw. The paper
    takes the most likely ids, which is temperature 0.

    Args:
        start: [B, S] int64, with `mask` at the positions to fill; these are the same in all rows.
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
        tokens, probability = draws.choose(predict(ids)[row, places].flatten(0, 1), uniform.flatten())
        ids = ids.scatter(1, places, tokens.view_as(places))
        sure = sure.scatter(1, again, probability.view_as(places))
        yield DecodingStep(ids.clone(), torch.zeros_like(ids, dtype=torch.bool).scatter(1, places, True))


def gibbs(predict: Predict, start: Tensor, mask: int, iterations: int, draws: Draws) -> Iterator[DecodingStep]:
    """Draw one position at a time given all others, in sweeps over all positions in random order.

    Wang and Cho, "BERT has a mouth, and it must speak: BERT as a Markov random field language model", NeuralGen 2019
    (arXiv:1902.04094). As Cho noted later, BERT is not a Markov random field: its conditionals need not belong to a
    joint distribution. So the chain may have no limit, or one that depends on the order. In the first sweep, positions
    not drawn yet are [MASK].

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
    """Append `length` tokens to texts [B, S], each drawn given all earlier tokens (causal models).

    `predict` may return only the logits of the last position, which predict the next id.
    """
    ids = start
    for _ in range(length):
        uniform = draws.uniform(len(ids), ids.shape[1] + 1, 0)[:, -1]
        tokens, _ = draws.choose(predict(ids)[:, -1], uniform)
        ids = torch.cat([ids, tokens[:, None]], dim=1)
        drawn = torch.zeros_like(ids, dtype=torch.bool)
        drawn[:, -1] = True
        yield DecodingStep(ids, drawn)
