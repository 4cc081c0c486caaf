"""Draw tokens from a model's logits with keyed random numbers: the same seed gives the same text."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data_prep.errors import UserError
from pretrain.philox import derive_key, philox


@dataclass(frozen=True)
class Draws:
    """Sampling settings and their random draws.

    allowed [V] bool: the ids that may be drawn, at least one.
    temperature: divides the logits; 0 takes the most likely id. top_k: draw among the k most likely ids; 0: all.
    seed: keys all draws. first: number of the first sample; it gives each call different draws.
    """

    allowed: Tensor
    temperature: float = 1.0
    top_k: int = 0
    seed: int = 0
    first: int = 0

    @cached_property
    def _key(self) -> tuple[int, int]:
        return derive_key(self.seed, "generation")

    def uniform(self, samples: int, positions: int, step: int, purpose: int = 0) -> Tensor:
        """Uniform numbers in [0, 1) of a step: float64 [samples, positions]."""
        sample = np.arange(self.first, self.first + samples)[:, None]
        high, low, _, _ = philox(self._key, np.arange(positions), sample, step, purpose)
        return torch.from_numpy(((high << np.uint64(20)) | (low >> np.uint64(12))).astype(np.float64) / 2.0**52)

    def choose(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Draw an id for each row of the logits [N, V], with the uniform numbers [N].

        Returns:
            ids int64 [N], and their probabilities float64 [N] among the allowed ids, at temperature 1 without top_k.

        Raises:
            UserError: if logits of allowed ids are not finite.
        """
        scores = logits.double().masked_fill(~self.allowed, -torch.inf)
        if not (scores.isfinite() | ~self.allowed).all():
            raise UserError("the model's logits are not all finite; it is damaged, or its training diverged")
        if self.temperature == 0:
            ids = scores.argmax(dim=-1)
        else:
            ids = self._drawn(scores, uniform)
        return ids, scores.softmax(dim=-1).gather(-1, ids[:, None])[:, 0]

    def _drawn(self, scores: Tensor, uniform: Tensor) -> Tensor:
        if 0 < self.top_k < scores.shape[-1]:
            best = scores.topk(self.top_k, dim=-1)
            scores = torch.full_like(scores, -torch.inf).scatter(-1, best.indices, best.values)
        below = scores - scores.amax(dim=-1, keepdim=True)  # the largest is 0, so a low temperature cannot overflow
        sums = (below / self.temperature).softmax(dim=-1).cumsum(dim=-1)
        # The first id whose cumulative sum exceeds the uniform number. An id of probability 0 adds nothing to the sum.
        return (sums > uniform[:, None] * sums[:, -1:]).int().argmax(dim=-1)
