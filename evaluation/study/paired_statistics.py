"""Means and paired differences with Student's t intervals; Holm's procedure for multiple differences.

Holm (1979), A simple sequentially rejective multiple test procedure: for any dependence between the differences, the
chance of at least one false significant difference is at most ALPHA.
"""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr

from data_prep.common.intervals import ALPHA, interval_of_seeds, moments, t_interval

MIN_PAIRS = 3
"""With fewer seeds, no difference is called significant, as their deviation says too little about other seeds."""

_MOST_CHOICES = 1000  # of seeds; if all arms lack other seeds, there are far more

BySeed = Mapping[int, float]
"""A value for each seed."""


@dataclass(frozen=True)
class Mean:
    """The mean over n seeds. interval: None for one seed or equal values, which do not show the variation."""

    mean: float
    interval: tuple[float, float] | None
    n: int


@dataclass(frozen=True)
class Difference:
    """One arm minus another, over the n seeds that both have.

    sd: standard deviation of the n differences; None for one difference, 0 for equal ones.
    p: two-sided, for a mean difference of zero; 1 if the deviation is unknown, and with fewer than MIN_PAIRS seeds.
    level: of the test in Holm's procedure and of `interval`. The interval excludes zero, and `p_adjusted` is below
        ALPHA, exactly if `significant` (the difference is significant) is true. None with fewer than MIN_PAIRS seeds.
    """

    mean: float
    sd: float | None
    n: int
    p: float
    p_adjusted: float
    level: float
    interval: tuple[float, float] | None
    significant: bool


@dataclass(frozen=True)
class Verdict:
    """The arm with the best mean, and its comparison with the others.

    seeds: number of seeds that all compared arms share.
    worse: arms that differ significantly from the best. Holm's procedure covers all pairs, as any arm could be best.
    level: arms that do not differ significantly from the best; this measure gives no preference among them.
    differences: of each arm minus each other arm, one family.
    left_out: arms that lack some of the seeds.
    """

    best: str
    seeds: int
    worse: tuple[str, ...]
    level: tuple[str, ...]
    differences: dict[str, dict[str, Difference]]
    left_out: tuple[str, ...]


def mean_of(values: Sequence[float], lowest: float = -math.inf, highest: float = math.inf) -> Mean:
    """Mean of at least one value, with Student's t interval at 1 - ALPHA, cut to the values that can exist."""
    interval = interval_of_seeds(values)
    ends = interval and (max(lowest, interval[0]), min(highest, interval[1]))
    return Mean(float(np.mean(values)), ends, len(values))


def paired_differences(pairs: Sequence[tuple[BySeed, BySeed]]) -> list[Difference]:
    """Difference (first minus second) of each pair over their common seeds, at least one. All pairs are one family."""
    of_pairs = []
    for first, second in pairs:
        common = sorted(first.keys() & second.keys())
        scale = max(abs(side[seed]) for seed in common for side in (first, second))
        of_pairs.append(moments([first[seed] - second[seed] for seed in common], scale))
    p_values = [_p_value(mean, sd, n) for n, mean, sd in of_pairs]
    differences = []
    for (n, mean, sd), p, (level, adjusted, rejected) in zip(of_pairs, p_values, holm(p_values), strict=True):
        interval = t_interval(n, mean, sd, level) if n >= MIN_PAIRS else None
        differences.append(Difference(mean, sd, n, p, adjusted, 1 - level, interval, rejected))
    return differences


def verdict_of(values: Mapping[str, BySeed], higher_is_better: bool) -> Verdict | None:
    """Compare arms by their values per seed; None if no two arms share a seed."""
    arms = _complete(values)
    if not arms:
        return None
    pairs = [*itertools.combinations(arms, 2)]
    differences: dict[str, dict[str, Difference]] = {name: {} for name in arms}
    for (first, second), minus in zip(pairs, paired_differences([(arms[a], arms[b]) for a, b in pairs]), strict=True):
        swapped = minus.interval and (-minus.interval[1], -minus.interval[0])
        differences[first][second] = minus
        differences[second][first] = replace(minus, mean=-minus.mean, interval=swapped)
    sign = 1 if higher_is_better else -1
    best = max(arms, key=lambda name: sign * sum(arms[name].values()))
    worse = tuple(name for name, minus in differences[best].items() if minus.significant)
    level = tuple(name for name, minus in differences[best].items() if not minus.significant)
    return Verdict(best, len(arms[best]), worse, level, differences, tuple(name for name in values if name not in arms))


def holm(p_values: Sequence[float]) -> list[tuple[float, float, bool]]:
    """For each p-value: the level of its test, the adjusted p-value, and whether that is below ALPHA.

    The k-th smallest of m is tested at ALPHA / (m - k + 1). The first that fails its test stops the procedure: all
    later ones fail too, at the same level.
    """
    count = len(p_values)
    tests: list[tuple[float, float, bool]] = [(ALPHA, 1.0, False)] * count
    adjusted, rejected = 0.0, 0
    for rank, index in enumerate(np.argsort(p_values, kind="stable").tolist()):
        adjusted = min(1.0, max(adjusted, (count - rank) * p_values[index]))
        level = ALPHA / (count - rejected)
        goes_on = p_values[index] < level
        rejected += goes_on
        tests[index] = (level, adjusted, goes_on)
    return tests


def _p_value(mean: float, sd: float | None, n: int) -> float:
    """p-value; 1 if all differences are equal, which happens by chance for discrete measures, and for few seeds."""
    return float(2 * stdtr(n - 1, -abs(mean) / sd * math.sqrt(n))) if sd and n >= MIN_PAIRS else 1.0


def _complete(values: Mapping[str, BySeed]) -> dict[str, dict[int, float]]:
    """Choose arms and their common seeds for the most degrees of freedom; empty if no two arms share a seed.

    Of more than _MOST_CHOICES choices of seeds, some are not tried.

    Without this choice, one arm with few seeds would limit the comparison of all others. The choice depends only on
    which runs exist, never on their values.
    """

    def arms_with(seeds: frozenset[int]) -> list[str]:
        return [name for name, own in values.items() if seeds <= own.keys()]

    def freedom(seeds: frozenset[int]) -> tuple[int, int, list[int]]:
        arms = len(arms_with(seeds))
        return (arms - 1) * (len(seeds) - 1), arms, sorted(seeds)

    choices: set[frozenset[int]] = set()
    for own in dict.fromkeys(map(frozenset, values.values())):  # intersections of any number of seed sets
        choices |= {own} | {own & others for others in choices}
        if len(choices) > _MOST_CHOICES:
            choices = {*heapq.nlargest(_MOST_CHOICES, choices, key=freedom)}
    usable = [seeds for seeds in choices if seeds and len(arms_with(seeds)) > 1]
    chosen = max(usable, key=freedom, default=frozenset())
    return {name: {seed: values[name][seed] for seed in sorted(chosen)} for name in arms_with(chosen) if chosen}
