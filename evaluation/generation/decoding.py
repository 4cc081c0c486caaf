"""Samplers: mask-predict and diffusion for masked models, left to right for causal and prefix models.

Random numbers are keyed: the same seed gives the same text.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data_prep.common.errors import UserError
from pretrain.philox import derive_key, philox

Predict = Callable[[Tensor], Tensor]
"""ids [B, S] int64 -> logits [B, S, V]."""


@dataclass(frozen=True)
class Draws:
    """Sampling settings and their random draws.

    allowed [V] bool: the ids that may be drawn, at least one.
    temperature: divides the logits; 0 takes the most likely id.
    seed: keys all draws. first: number of the first sample; it gives each call different draws.
    """

    allowed: Tensor
    temperature: float = 1.0
    seed: int = 0
    first: int = 0

    @cached_property
    def _key(self) -> tuple[int, int]:
        return derive_key(self.seed, "generation")

    def uniform(self, samples: int, positions: int, step: int) -> Tensor:
        """Uniform numbers in [0, 1) of a step: float64 [samples, positions]."""
        sample = np.arange(self.first, self.first + samples)[:, None]
        high, low, _, _ = philox(self._key, np.arange(positions), sample, step, 0)
        return torch.from_numpy(((high << np.uint64(20)) | (low >> np.uint64(12))).astype(np.float64) / 2.0**52)

    def choose(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Draw an id for each row of the logits [N, V], with the uniform numbers [N].

        Returns:
            ids int64 [N], and their probabilities float64 [N] among the allowed ids, at temperature 1.

        Raises UserError if logits of allowed ids are not finite.
        """
        scores = logits.double().masked_fill(~self.allowed, -torch.inf)
        if not (scores.isfinite() | ~self.allowed).all():
            raise UserError("the model's logits are not all finite; it is damaged, or its training diverged")
        if self.temperature == 0:
            ids = scores.argmax(dim=-1)
        else:
            below = scores - scores.amax(dim=-1, keepdim=True)  # the largest is 0, so a low temperature cannot overflow
            sums = (below / self.temperature).softmax(dim=-1).cumsum(dim=-1)
            # The first id whose cumulative sum exceeds the uniform number. Probabilities of 0 add nothing to the sum.
            ids = (sums > uniform[:, None] * sums[:, -1:]).int().argmax(dim=-1)
        return ids, scores.softmax(dim=-1).gather(-1, ids[:, None])[:, 0]


def fill_masks(
    predict: Predict, start: Tensor, mask: int, iterations: int, draws: Draws, again: bool
) -> Iterator[Tensor]:
    """Fill all masks, and in each iteration mask the least probable tokens again, linearly fewer. Yield the ids.

    Args:
        start: [B, S] int64, with `mask` at the positions to fill; these are the same in all rows.
        again: whether tokens of earlier iterations can be masked again. True is mask-predict (Ghazvininejad et al.,
            EMNLP 2019, arXiv:1904.09324; the paper takes the most likely ids, which is temperature 0). A token that
            stays unmasked keeps the probability of its draw. False is the reverse process of masked diffusion (Sahoo
            et al., 2024, arXiv:2406.07524), the most probable tokens first, as in MaskGIT (Chang et al., CVPR 2022,
            arXiv:2202.04200) and LLaDA (Nie et al., 2025, arXiv:2502.09992).
    """
    ids, places = start, torch.nonzero(start[0] == mask)[:, 0].expand(len(start), -1)  # places: to draw [B, n]
    free, sure = places.shape[1], torch.full(start.shape, torch.inf, dtype=torch.float64)
    for iteration in range(iterations):
        left = -(-free * (iterations - iteration) // iterations)
        if iteration:
            places = sure.argsort(dim=1, stable=True)[:, :left]
        tokens, probability = _drawn_at(predict, ids.scatter(1, places, mask), places, iteration, draws)
        ids = ids.scatter(1, places, tokens)
        sure = (sure if again else torch.full_like(sure, torch.inf)).scatter(1, places, probability)
        yield ids


def _drawn_at(predict: Predict, ids: Tensor, places: Tensor, iteration: int, draws: Draws) -> tuple[Tensor, Tensor]:
    """Draw tokens for places [B, n] of the ids [B, S]: the tokens and their probabilities [B, n]."""
    row = torch.arange(len(ids))[:, None].expand_as(places)
    uniform = draws.uniform(len(ids), ids.shape[1], iteration).gather(1, places)
    tokens, probability = draws.choose(predict(ids)[row, places].flatten(0, 1), uniform.flatten())
    return tokens.view_as(places), probability.view_as(places)


def left_to_right(
    predict: Predict, start: Tensor, length: int, draws: Draws, end: int | None = None
) -> Iterator[Tensor]:
    """Append at most `length` tokens to texts [B, S], each drawn given all earlier tokens, until all texts have `end`.

    `predict` may return only the logits of the last position, which predict the next id.
    """
    ids = start
    for _ in range(length):
        if end is not None and (ids[:, start.shape[1] :] == end).any(dim=1).all():
            return
        uniform = draws.uniform(len(ids), ids.shape[1] + 1, 0)[:, -1]
        tokens, _ = draws.choose(predict(ids)[:, -1], uniform)
        ids = torch.cat([ids, tokens[:, None]], dim=1)
        yield ids
