"""A sequential test that stops the arms of a study that are worse than the best one.

After each seed from the second to the last but one, arms are the rows and seeds the columns of a two-way layout. An arm
is stopped if its mean is worse than the best one's by a one-sided t test with the pooled variance of the residuals.
The idea is Paulson's (1964, A sequential procedure for selecting the population with the largest mean). The level of
each test is ALPHA over the number of looks and of comparisons with the best arm (Bonferroni's inequality; Dunn, 1961,
Multiple comparisons among means). So the arm that is truly best is stopped with a chance of at most ALPHA, if the arms
vary equally. If it is barely the best and varies three times as much as others, the chance is 13% (8 arms, 5 seeds).
"""

from collections.abc import Collection, Mapping

import numpy as np
from scipy.special import stdtr

from data_prep.common.intervals import ALPHA, ROUNDING
from evaluation.study.paired_statistics import BySeed


def stopped_arms(
    values: Mapping[str, BySeed], arms: Collection[str], seeds: int, higher_is_better: bool, looks: int
) -> dict[str, int]:
    """The arms that get no more seeds, each with the number of seeds that it has had.

    An arm that lacks a value is not compared: it is neither stopped nor the best one. If it was not stopped before, the
    test is repeated without all its values, so that an arm that failed stops no other.

    Args:
        arms: all arms. seeds: how many each arm gets that is not stopped.
        looks: after so many seeds is the last look that may be made.
    """
    stopped, looks = dict[str, int](), min(looks, seeds - 1)
    level = ALPHA / (max(1, seeds - 2) * max(1, len(arms) - 1))
    for seen in range(2, looks + 1):
        complete = {
            arm: [values[arm][seed] for seed in range(1, seen + 1)]
            for arm in arms
            if arm not in stopped and values.get(arm, {}).keys() >= {*range(1, seen + 1)}
        }
        if len(complete) > 1:
            table = np.array([*complete.values()]) * (1 if higher_is_better else -1)
            p_values = _p_values(table)
            stopped |= {arm: seen for arm, p in zip(complete, p_values, strict=True) if p < level}
    going_on = {arm: of for arm, of in values.items() if arm in stopped or of.keys() >= {*range(1, looks + 1)}}
    return stopped if len(going_on) == len(values) else stopped_arms(going_on, arms, seeds, higher_is_better, looks)


def _p_values(table: np.ndarray) -> np.ndarray:
    """One-sided p-value of each row against the row with the highest mean, [arms, seeds] float64 -> [arms] float64.

    1 for all if the residuals are zero, which says nothing about their variation.
    """
    arms, seeds = table.shape
    means = table.mean(axis=1)
    residuals = table - means[:, None] - table.mean(axis=0) + table.mean()
    freedom = (arms - 1) * (seeds - 1)
    deviation = np.sqrt((residuals**2).sum() / freedom)
    if deviation <= ROUNDING * np.abs(table).max():
        return np.ones(arms)
    p_values: np.ndarray = stdtr(freedom, (means - means.max()) / (deviation * np.sqrt(2 / seeds)))
    return p_values
