"""Paired comparisons over units, such as sentences: differences of shares, intervals and Holm's procedure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from data_prep.common.intervals import ALPHA
from evaluation.likelihood.evaluate_models import paired_bootstrap
from evaluation.study.paired_statistics import holm

_FLIPS = 10_000


@dataclass(frozen=True)
class Compared:
    """sum(one - other) / sum(weights), its 95% bootstrap interval, and the p-value of the family by Holm."""

    difference: float
    interval: tuple[float, float] | None
    p_adjusted: float

    @property
    def is_significant(self) -> bool:
        return self.p_adjusted < ALPHA

    def __str__(self) -> str:
        interval = f" ({100 * self.interval[0]:+.1f} to {100 * self.interval[1]:+.1f})" if self.interval else ""
        return f"{100 * self.difference:+.1f}{interval}"

    @property
    def verdict(self) -> str:
        return f"p = {self.p_adjusted:.4f}" if self.is_significant else "not significant"


def sign_flip(differences: ArrayLike) -> float:
    """Two-sided p-value of a paired randomization test: each unit's difference [U] changes its sign at random.

    Fisher, "The Design of Experiments", 1935. The smallest value is 1 / 10,001.
    """
    values, random = np.asarray(differences, dtype=np.float64), np.random.default_rng(0)
    signs = (random.integers(2, size=len(values)) * 2 - 1 for _ in range(_FLIPS))
    found = abs(values.sum())
    as_large = sum(abs(float(values @ sign)) >= found - 1e-9 for sign in signs)
    return (1 + as_large) / (1 + _FLIPS)


def compare(pairs: Sequence[tuple[ArrayLike, ArrayLike]], weights: ArrayLike) -> list[Compared]:
    """Compare sums of units [U] of each pair (one, other). All pairs are one family. weights: [U]."""
    differences = [np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64) for one, other in pairs]
    total = np.asarray(weights, dtype=np.float64)
    adjusted = [p for _, p, _ in holm([sign_flip(one) for one in differences])]
    return [
        Compared(float(one.sum() / total.sum()), paired_bootstrap(one, total), p)
        for one, p in zip(differences, adjusted, strict=True)
    ]


def share(sums: ArrayLike, weights: ArrayLike) -> str:
    """A share in percent with its 95% bootstrap interval over units."""
    found, total = np.asarray(sums, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    interval = paired_bootstrap(found, total)
    between = f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else ""
    return f"{100 * found.sum() / total.sum():.1f}{between}"
