"""What a study may recommend by one measure, and what it may not."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from launchers.study.statistics import ALPHA, Difference, Seeds, differences, seeds_needed


@dataclass(frozen=True)
class Comparison:
    """The best arm minus another one; `seeds`: how many would probably tell them apart, None if that is not known."""

    other: str
    difference: Difference
    seeds: int | None


@dataclass(frozen=True)
class Verdict:
    """Of several arms the one with the best mean, and how the others compare with it.

    worse: those that differ from it, by Holm's procedure over all pairs of arms, as any could have been the best.
    level: those that do not; none of these, the best included, may be preferred by this measure.
    """

    best: str
    seeds: int
    worse: tuple[Comparison, ...]
    level: tuple[Comparison, ...]


def verdict_of(values: Mapping[str, Seeds], higher_is_better: bool, alpha: float = ALPHA) -> Verdict | None:
    """Compare arms, by their values of each seed.

    Arms are compared by the seeds that all of them have. None if there are fewer than two arms, or no common seed.
    """
    common = set.intersection(*(set(seeds) for seeds in values.values())) if values else set()
    if len(values) < 2 or not common:
        return None
    arms = {name: {seed: seeds[seed] for seed in sorted(common)} for name, seeds in values.items()}
    sign = 1 if higher_is_better else -1
    best = max(arms, key=lambda name: sign * sum(arms[name].values()))
    pairs = [(best, name) for name in arms if name != best]
    pairs += [pair for pair in itertools.combinations(arms, 2) if best not in pair]
    found = differences([(arms[one], arms[two]) for one, two in pairs], alpha)
    ours = [
        Comparison(two, difference, None if difference.told_apart else seeds_needed(difference))
        for (one, two), difference in zip(pairs, found, strict=True)
        if one == best
    ]
    return Verdict(
        best,
        len(common),
        tuple(one for one in ours if one.difference.told_apart),
        tuple(one for one in ours if not one.difference.told_apart),
    )
