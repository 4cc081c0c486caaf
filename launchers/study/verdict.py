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
