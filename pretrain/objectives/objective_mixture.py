"""The objective of a run: one, or a mixture of several.

A mixture has several objectives in one micro-batch, each for its share of the rows (GPT-BERT: Charpentier and Samuel,
2024).
"""

import math
from collections.abc import Sequence
from copy import copy
from functools import reduce
from operator import or_
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pretrain.config import Config, MaskingConfig, View
from pretrain.masking import IGNORED, Masked, RowGroup, Rows, Vocabulary, mask_rate, of_rows, scheduled
from pretrain.philox import derive_key

_ROUNDING = 1e-6  # of a share of rows, relative to a row


class Objective(Protocol):
    """A training objective: labels of a row as a pure function of the row and the rate."""

    @property
    def flags(self) -> int:
        """Flag bits of tokens that the objective needs."""
        ...

    def slots(self, seq_len: int) -> int:
        """Number of places for predictions in a row of `seq_len` slots."""
        ...

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask rows; `rate` is the share of ordinary tokens to predict."""
        ...


class ObjectiveMixture:
    """A mixture of objectives. Shares of the rows are exact in each micro-batch, so that shapes are constant.

    Rows are divided into the smallest blocks that give each share whole rows. In each block a keyed draw orders
    the rows, and the first ones get the first objective. So an objective does not depend on how the global batch is
    split over ranks and micro-batches, as long as these hold whole blocks.

    Args:
        objectives: in the order of Config.objective_kinds. views: theirs; equal ones are neighbours.
        ends: the shares at the first step and at the last.
        key: of the draws.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        views: Sequence[View],
        ends: Sequence[tuple[float, float]],
        key: tuple[int, int],
    ):
        self._objectives, self._views, self._ends, self._key = tuple(objectives), tuple(views), ends, key
        self._shares = tuple(start for start, _ in ends)

    flags = property(lambda self: reduce(or_, (objective.flags for objective in self._objectives)))

    def with_shares(self, shares: Sequence[float]) -> "ObjectiveMixture":
        """The same mixture with these shares of the rows."""
        changed = copy(self)
        changed._shares = tuple(shares)
        return changed

    def alone(self, number: int) -> "ObjectiveMixture":
        """The objective with this number for all rows."""
        return self.with_shares([float(number == other) for other in range(len(self._objectives))])

    def largest(self, seq_len: int) -> "ObjectiveMixture":
        """The mixture with the shares that need the most places for predictions: of the first step, or of the last."""
        return max(
            map(self.with_shares, zip(*self._ends, strict=True)), key=lambda mixture: mixture._mean_places(seq_len)
        )

    def slots(self, seq_len: int) -> int:
        """Places for predictions in a row, at most, averaged over the rows of a micro-batch and rounded up."""
        return math.ceil(self.largest(seq_len)._mean_places(seq_len) - _ROUNDING)

    def _mean_places(self, seq_len: int) -> float:
        places = (objective.slots(seq_len) for objective in self._objectives)
        return sum(share * of_row for share, of_row in zip(self._shares, places, strict=True))

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask rows; rows of one objective are neighbours afterwards, see Masked.order."""
        quotas = row_quotas(self._shares, len(rows.tokens))
        order = np.argsort(row_objectives(self._key, rows.row_ids, quotas), kind="stable")
        seq_len, first = rows.tokens.shape[1], 0
        parts, groups = [], []
        for number, (objective, quota) in enumerate(zip(self._objectives, quotas, strict=True)):
            if quota:
                masked = objective(rows[order[first : first + quota]], rate)
                parts.append((masked, first * seq_len))
                groups.append(RowGroup(number, self._views[number], quota, len(masked.labels)))
                first += quota
        return Masked(
            np.concatenate([masked.tokens for masked, _ in parts]),
            np.concatenate([masked.positions + slot for masked, slot in parts]),
            np.concatenate([masked.labels for masked, _ in parts]),
            weights=_weights([masked for masked, _ in parts]),
            order=order,
            groups=tuple(groups),
        )


def objective_of(
    config: Config,
    vocabulary: Vocabulary,
    seed: int,
    purpose: str,
    phase: int = 0,
    masking: MaskingConfig | None = None,
) -> Objective:
    """Create the objective of a phase of a run; see MaskedTokens for seed and purpose.

    It has all objectives of the run, so that they have the same numbers in each phase; some may have no share in it.

    Args:
        masking: instead of the settings of the phase.

    Raises UserError if a required file is missing, damaged, or made with another tokenizer.
    """
    of_phase, kinds = config.run_phases[phase].config, config.objective_kinds
    masking = masking or of_phase.masking
    objectives: list[Objective] = [kind.create(masking, vocabulary, seed, purpose) for kind in kinds]
    if len(objectives) == 1:
        return objectives[0]
    ends: dict[str, tuple[float, float]] = {entry.kind: entry.ends for entry in of_phase.objectives}
    shares = [ends.get(kind.name, (0.0, 0.0)) for kind in kinds]
    return ObjectiveMixture(
        objectives, [kind.view for kind in kinds], shares, derive_key(seed, f"{purpose}-objectives")
    )


def row_quotas(shares: Sequence[float], rows: int) -> tuple[int, ...]:
    """Rows of each objective: rounded down, then one more for those with the largest remainders."""
    exact = [share * rows for share in shares]
    quotas = [math.floor(count + _ROUNDING) for count in exact]
    by_remainder = sorted(range(len(shares)), key=lambda number: quotas[number] - exact[number])
    for number in by_remainder[: rows - sum(quotas)]:
        quotas[number] += 1
    return tuple(quotas)


def row_objectives(key: tuple[int, int], row_ids: NDArray[np.int64], quotas: Sequence[int]) -> NDArray[np.int64]:
    """The number of each row's objective: [R] for row_ids [R, 3], whose quotas add up to R."""
    blocks = math.gcd(*quotas)
    in_block = np.repeat(np.arange(len(quotas)), [quota // blocks for quota in quotas])
    draws = of_rows(key, row_ids).reshape(blocks, -1)
    numbers = np.empty_like(draws)
    np.put_along_axis(numbers, np.argsort(draws, axis=1, kind="stable"), in_block[None], axis=1)
    return numbers.reshape(-1)


def shares_at(config: Config, step: int) -> tuple[float, ...]:
    """The share of the rows of each of Config.objective_kinds at a step: 0 for the first optimizer step."""
    phase = config.phase_at(step)
    span = phase.spans["objective"]
    own: dict[str, float] = {
        entry.kind: scheduled(entry.share, step - span.start, span.steps) for entry in phase.config.objectives
    }
    return tuple(own.get(kind.name, 0.0) for kind in config.objective_kinds)


def loss_weights(config: Config, step: int, shares: Sequence[float]) -> tuple[float, ...]:
    """The weight of each objective's loss at a step, by default its share of the rows; 0 if the phase has it not.

    shares: as shares_at, or empty for one objective.
    """
    if not shares:
        return (1.0,)
    own = {entry.kind: entry for entry in config.phase_at(step).config.objectives}
    entries = [own.get(kind.name) for kind in config.objective_kinds]
    return tuple(
        (share if entry.weight is None else entry.weight) if entry else 0.0
        for entry, share in zip(entries, shares, strict=True)
    )


def predicted_share(config: Config, step: int) -> float:
    """The share of ordinary tokens that are predicted at a step, at most."""
    rate = mask_rate(config, step)
    rates = [1.0 if "rate" in kind.unread else rate for kind in config.objective_kinds]
    return sum(share * rate for share, rate in zip(shares_at(config, step), rates, strict=True))


def _weights(parts: Sequence[Masked]) -> NDArray[np.float32] | None:
    if all(masked.weights is None for masked in parts):
        return None
    return np.concatenate(
        [(part.labels != IGNORED).astype(np.float32) if part.weights is None else part.weights for part in parts]
    )
