"""Means, and differences paired by seed, with Student's t; many differences at once by Holm's procedure.

Holm (1979), A simple sequentially rejective multiple test procedure: however the differences depend on one another, the
chance that any of them is wrongly said to differ is at most `alpha`.
"""

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ncfdtr, stdtr, stdtrit

ALPHA = 0.05
POWER = 0.8
MOST_SEEDS = 1000
_ROUNDING = 1e-9  # of the values: a smaller spread is that of binary fractions

Seeds = Mapping[int, float]
"""A value for each seed."""


@dataclass(frozen=True)
class Mean:
    """The mean over n seeds; its interval is None where one seed, or equal values, tell nothing of the spread."""

    mean: float
    interval: tuple[float, float] | None
    n: int


@dataclass(frozen=True)
class Difference:
    """One arm minus another, over the n seeds that both have.

    sd: standard deviation of the n differences; None of one difference, and 0 of equal ones.
    p: two-sided, for a mean difference of zero; 1 where the spread is not known.
    level: at which Holm's procedure tests it, and that of `interval`, which therefore excludes zero just where
        `told_apart` is true. `p_adjusted` is below `alpha` just there, too.
    """

    mean: float
    sd: float | None
    n: int
    p: float
    p_adjusted: float
    level: float
    interval: tuple[float, float] | None
    told_apart: bool

    def swapped(self) -> "Difference":
        """The other arm minus the one."""
        interval = self.interval and (-self.interval[1], -self.interval[0])
        return replace(self, mean=-self.mean, interval=interval)


@dataclass(frozen=True)
class Comparison:
    """The best arm minus another one; `seeds`: how many would probably tell them apart, None if that is not known."""

    other: str
    difference: Difference
    seeds: int | None


@dataclass(frozen=True)
class Verdict:
    """Of several arms the one with the best mean, and how the others compare with it.

    seeds: how many they are compared by, each of which all of them have.
    worse: those that differ from the best, by Holm's procedure over all pairs of arms, as any could have been the best.
    level: those that do not; none of these, the best included, may be preferred by this measure.
    differences: of each arm minus each other, all of one family.
    left_out: arms that lack some of the seeds.
    """

    best: str
    seeds: int
    worse: tuple[Comparison, ...]
    level: tuple[Comparison, ...]
    differences: dict[str, dict[str, Difference]]
    left_out: tuple[str, ...]


def mean_of(values: Sequence[float], alpha: float = ALPHA) -> Mean:
    """The mean of at least one value, with Student's interval at the level 1 - alpha."""
    n, mean, sd = _moments(values, max(map(abs, values)))
    return Mean(mean, _interval(mean, sd, n, alpha), n)


def differences(pairs: Sequence[tuple[Seeds, Seeds]], alpha: float = ALPHA) -> list[Difference]:
    """The first minus the second of each pair, by their common seeds, of which there is at least one.

    All pairs are one family.
    """
    moments = [_paired(one, two) for one, two in pairs]
    p_values = [_p_value(mean, sd, n) for n, mean, sd in moments]
    found = []
    for (n, mean, sd), p, (level, adjusted, rejected) in zip(moments, p_values, holm(p_values, alpha), strict=True):
        interval = _interval(mean, sd, n, level)
        found.append(Difference(mean, sd, n, p, adjusted, 1 - level, interval, rejected))
    return found


def verdict_of(values: Mapping[str, Seeds], higher_is_better: bool, alpha: float = ALPHA) -> Verdict | None:
    """Compare arms, by their values of each seed.

    None if no two arms have a seed in common.
    """
    arms = _complete(values)
    if not arms:
        return None
    pairs = [*itertools.combinations(arms, 2)]
    found: dict[str, dict[str, Difference]] = {name: {} for name in arms}
    for (one, two), minus in zip(pairs, differences([(arms[a], arms[b]) for a, b in pairs], alpha), strict=True):
        found[one][two], found[two][one] = minus, minus.swapped()
    sign = 1 if higher_is_better else -1
    best = max(arms, key=lambda name: sign * sum(arms[name].values()))
    others = found[best].items()
    return Verdict(
        best,
        len(arms[best]),
        tuple(Comparison(name, minus, None) for name, minus in others if minus.told_apart),
        tuple(Comparison(name, minus, seeds_needed(minus)) for name, minus in others if not minus.told_apart),
        found,
        tuple(name for name in values if name not in arms),
    )


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[tuple[float, float, bool]]:
    """For each p-value: the level at which it is tested, the adjusted p-value, and whether it is below `alpha`.

    The k-th smallest of m is tested at alpha / (m - k + 1); from the first that is not below its level on, none is, and
    all are tested at that level.
    """
    count = len(p_values)
    found: list[tuple[float, float, bool]] = [(alpha, 1.0, False)] * count
    adjusted, rejected = 0.0, 0
    for rank, index in enumerate(np.argsort(p_values, kind="stable").tolist()):
        adjusted = min(1.0, max(adjusted, (count - rank) * p_values[index]))
        level = alpha / (count - rejected)
        goes_on = p_values[index] < level
        rejected += goes_on
        found[index] = (level, adjusted, goes_on)
    return found


def seeds_needed(difference: Difference, power: float = POWER) -> int | None:
    """With how many seeds a difference of this mean and spread would be told from zero, at its level, with this chance.

    The power of the two-sided paired t-test is that of the noncentral F distribution, t squared being an F. None if
    more than MOST_SEEDS are needed, or the spread is not known.
    """
    if not difference.sd or not difference.mean:
        return None
    effect, alpha = abs(difference.mean) / difference.sd, 1 - difference.level
    counts = range(2, MOST_SEEDS + 1)
    index = bisect.bisect_left(counts, power, key=lambda n: _power(effect, n, alpha))
    return counts[index] if index < len(counts) else None


def _power(effect: float, n: int, alpha: float) -> float:
    """The chance that the two-sided paired t-test tells a mean of `effect` standard deviations from zero."""
    power = 1 - float(ncfdtr(1, n - 1, effect**2 * n, _quantile(n, alpha) ** 2))
    return 1.0 if math.isnan(power) else power  # SciPy has none where the effect is too large for it


def _paired(one: Seeds, two: Seeds) -> tuple[int, float, float | None]:
    common = sorted(one.keys() & two.keys())
    scale = max(abs(side[seed]) for seed in common for side in (one, two))
    return _moments([one[seed] - two[seed] for seed in common], scale)


def _moments(values: Sequence[float], scale: float) -> tuple[int, float, float | None]:
    """n, mean, and standard deviation; one that is but the rounding of numbers of this scale is 0."""
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return n, mean, None
    sd = float(np.std(values, ddof=1))
    return n, mean, sd if sd > _ROUNDING * scale else 0.0


def _p_value(mean: float, sd: float | None, n: int) -> float:
    """1 where all differences are equal: with measures that move in steps, that happens by chance."""
    return float(2 * stdtr(n - 1, -abs(mean) / sd * math.sqrt(n))) if sd else 1.0


def _interval(mean: float, sd: float | None, n: int, alpha: float) -> tuple[float, float] | None:
    if not sd:
        return None
    half = _quantile(n, alpha) * sd / math.sqrt(n)
    return mean - half, mean + half


def _quantile(n: int, alpha: float) -> float:
    """Student's t that n values exceed with a chance of alpha, on both sides together."""
    return -float(stdtrit(n - 1, alpha / 2))


def _complete(values: Mapping[str, Seeds]) -> dict[str, dict[int, float]]:
    """Arms with the seeds that all of them have, chosen for the most degrees of freedom; none if no two share a seed.

    An arm with few seeds would else keep all others from being compared by more. Which runs there are decides this, and
    no value.
    """
    every = [frozenset(seeds) for seeds in values.values()]
    choices: set[frozenset[int]] = set()
    for own in every:  # all intersections of any of them
        choices |= {own} | {own & others for others in choices}

    def arms_with(seeds: frozenset[int]) -> list[str]:
        return [name for name, own in values.items() if seeds <= own.keys()]

    def freedom(seeds: frozenset[int]) -> tuple[int, int, list[int]]:
        arms = len(arms_with(seeds))
        return (arms - 1) * (len(seeds) - 1), arms, sorted(seeds)

    usable = [seeds for seeds in choices if seeds and len(arms_with(seeds)) > 1]
    chosen = max(usable, key=freedom, default=frozenset())
    return {name: {seed: values[name][seed] for seed in sorted(chosen)} for name in arms_with(chosen) if chosen}
