"""Statistics of a study: published and manually computed figures, and error rates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.common.intervals import interval_of_seeds
from evaluation.study.early_stopping import stopped_arms
from evaluation.study.paired_statistics import holm, mean_of, paired_differences, verdict_of
from evaluation.study.study_results import METRICS, compare_arms

STUDENT = {1: 12.7062, 2: 4.3027, 4: 2.7764}  # 97.5% quantiles, as tables have them


def seeds(*values):
    return dict(enumerate(values, 1))


@pytest.mark.parametrize(
    "values,mean,sd", [((1.0, 3.0), 2, 2**0.5), ((1.0, 2.0, 3.0), 2, 1), ((2, 4, 4, 4, 6), 4, 2**0.5)]
)
def test_a_mean_has_students_interval(values, mean, sd):
    found = mean_of(values)
    half = STUDENT[len(values) - 1] * sd / len(values) ** 0.5
    assert found.mean == pytest.approx(mean)
    assert found.interval == pytest.approx((mean - half, mean + half), rel=1e-4)


def test_one_seed_and_equal_values_have_no_interval():
    assert mean_of([2.0]).interval is None
    assert mean_of([2.0, 2.0, 2.0]).interval is None
    assert interval_of_seeds([0.1 + 0.2, 0.3]) is None, "equal but for rounding"
    (found,) = paired_differences([(seeds(2.0), seeds(1.0))])
    assert (found.mean, found.sd, found.interval, found.p, found.significant) == (1.0, None, None, 1.0, False)


def test_differences_that_are_equal_but_for_rounding_claim_nothing():
    one, two = seeds(0.53, 0.31, 0.12), seeds(0.52, 0.30, 0.11)
    assert len({one[seed] - two[seed] for seed in one}) > 1
    (found,) = paired_differences([(one, two)])
    assert (found.sd, found.interval, found.significant) == (0.0, None, False)


def test_differences_are_paired_by_seed():
    """Differences 1, 2, 3: mean 2, sd 1, t = 2 / (1 / sqrt 3) = 3.464 with 2 degrees of freedom, p = 0.0742."""
    (found,) = paired_differences([({1: 11, 2: 22, 3: 33, 4: 0}, {3: 30, 2: 20, 1: 10, 9: 5})])
    assert (found.mean, found.sd, found.n) == (2, 1, 3)
    assert found.p == pytest.approx(0.0742, abs=5e-5)
    assert found.interval == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), rel=1e-4)


def test_holm_by_hand():
    """Of 4: 0.05/4, 0.05/3, 0.05/2; the third fails, and the fourth with it although it is below 0.05."""
    found = holm([0.03, 0.005, 0.04, 0.01])
    assert [rejected for *_, rejected in found] == [False, True, False, True]
    assert [level for level, *_ in found] == pytest.approx([0.025, 0.0125, 0.025, 0.05 / 3])
    assert [adjusted for _, adjusted, _ in found] == pytest.approx([0.06, 0.02, 0.06, 0.03])
    assert holm([]) == []


@given(st.lists(st.lists(st.floats(-5, 5).map(lambda v: round(v, 3)), min_size=4, max_size=4), min_size=2, max_size=5))
def test_an_interval_excludes_zero_just_where_arms_are_told_apart(arms):
    base, *others = [seeds(*values) for values in arms]
    for found in paired_differences([(other, base) for other in others]):
        excludes = found.interval is not None and not found.interval[0] <= 0 <= found.interval[1]
        assert excludes == found.significant


NOISE = {"a": seeds(3.00, 3.02, 2.98, 3.01), "b": seeds(3.50, 3.51, 3.49, 3.52), "c": seeds(3.01, 3.00, 3.00, 3.01)}


def test_the_best_arm_is_told_apart_from_some():
    found = verdict_of(NOISE, higher_is_better=False)
    assert found.best == "a"
    assert (found.worse, found.level) == (("b",), ("c",))
    worse, level = (found.differences["a"][other] for other in "bc")
    assert worse.mean == pytest.approx(-0.5025)
    assert worse.interval[1] < 0
    assert level.interval[0] < 0 < level.interval[1]
    other = found.differences["b"]["a"]
    assert (other.mean, other.interval, other.p) == (-worse.mean, (-worse.interval[1], -worse.interval[0]), worse.p)
    assert verdict_of(NOISE, higher_is_better=True).best == "b"


def test_arms_are_compared_by_the_seeds_that_all_have():
    found = verdict_of({"a": seeds(1, 1.1, 9), "b": {2: 2.0, 3: 2.1, 4: 2.2}}, higher_is_better=False)
    assert (found.seeds, found.left_out) == (2, ())
    assert found.differences["a"]["b"].n == 2
    assert verdict_of({"a": {1: 1.0}, "b": {2: 1.0}}, True) is None
    assert verdict_of({"a": {1: 1.0}}, True) is None
    assert verdict_of({}, True) is None


@pytest.mark.parametrize("own,left_out,n", [
    ({1}, ("d",), 4),  # whose only value would be the best
    ({1, 2}, ("d",), 4),
    ({1, 2, 3}, (), 3),
    ({7}, ("d",), 4),
    ({1, 2, 3, 4, 5}, (), 4),  # as while the runs of one more seed are made
])  # fmt: skip
def test_an_arm_with_few_seeds_keeps_no_others_from_being_compared(own, left_out, n):
    found = verdict_of(NOISE | {"d": dict.fromkeys(own, 1.0)}, higher_is_better=False)
    assert (found.left_out, found.seeds) == (left_out, n)
    assert found.best == ("a" if left_out else "d")
    assert "a" in found.differences["b"]
    assert ("d" in found.differences["a"]) == (not left_out)


def test_seeds_are_those_that_leave_the_most_degrees_of_freedom():
    """Of runs that are made seed by seed, and not all of them yet."""
    lacking = {"a": {7}, "b": {6}, "c": {5}, "d": set(), "e": {2, 3, 4, 5, 6, 7}}
    values = {name: {seed: 1.0 * seed for seed in range(1, 8) if seed not in out} for name, out in lacking.items()}
    found = verdict_of(values, higher_is_better=False)
    assert (found.left_out, found.seeds) == (("e",), 4)  # 3 x 3; b, c and d alone would have 2 x 4


def test_many_arms_that_lack_other_seeds_are_compared_within_seconds():
    """Their seed sets have a million intersections."""
    found = verdict_of({f"{arm}": {seed: 0.0 for seed in range(20) if seed != arm} for arm in range(20)}, True)
    assert (found.seeds, len(found.differences)) == (10, 10)


@pytest.mark.parametrize("stop_early", [False, True])
def test_where_all_arms_are_equal_hardly_any_study_tells_two_apart(stop_early):
    """The data choose the best of 6, the baseline is in the table, and arms are stopped. None may add errors."""
    rng = np.random.default_rng(1)
    metric = next(metric for metric in METRICS if metric.better == "higher")
    studies, wrong = 1000, 0
    for _ in range(studies):
        table = rng.normal(size=(6, 5)) + rng.normal(size=5)  # seeds have something in common
        values = {str(n): seeds(*row) for n, row in enumerate(table.tolist())}
        stopped = stopped_arms(values, values, 5, True, 5) if stop_early else {}
        compared = compare_arms(metric, values, "0", stopped)
        significant = any(minus.significant for minus in compared.from_baseline.values())
        wrong += significant or bool(compared.verdict and compared.verdict.worse)
    assert wrong / studies < 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5


@pytest.mark.parametrize(
    "means,varies,planned,errors,saved",
    [  # means in residual deviations; the deviation of the first arm; the true error, and the share of runs left out
        ([0, 0], 1, 3, (0.03, 0.07), (0, 0.03)),
        ([0] * 8, 1, 5, (0, 0.05), (0, 0.02)),
        ([0, 0, 0, 0, 3, 3, 6, 10], 1, 5, (0, 0.03), (0.2, 0.3)),
        ([0, 4, 4, 4], 1, 4, (0, 0.01), (0.2, 0.3)),
        ([0] + [0.01] * 7, 3, 5, (0.1, 0.16), (0, 0.1)),
    ],
)
def test_the_sequential_test_stops_bad_arms_and_rarely_the_best(means, varies, planned, errors, saved):
    """2,000 studies: the chance to stop the best arm, here the first one, is at most 5%; 5% exactly for two arms.

    It is 13% if the best arm is best by very little and varies three times as much as the others.
    """
    rng, arms = np.random.default_rng(0), [str(number) for number in range(len(means))]
    wrong = left_out = 0
    for _ in range(2000):
        noise = rng.normal(size=(len(means), planned))
        noise[0] *= varies
        noise += 5 * rng.normal(size=planned)  # seeds have something in common
        values = {arm: seeds(*row) for arm, row in zip(arms, (noise.T + means).T.tolist(), strict=True)}
        stopped = stopped_arms(values, arms, planned, False, planned)
        wrong += "0" in stopped
        left_out += sum(planned - seen for seen in stopped.values())
    assert errors[0] <= wrong / 2000 <= errors[1]
    assert saved[0] <= left_out / (2000 * planned * len(means)) <= saved[1]


def test_the_sequential_test_by_hand():
    """Residuals of 0.5 and -0.5 in each row: s = 1, t = 8 / (1 * sqrt(2 / 2)) = 8 with 1 degree, p = 0.0396 < 0.05."""
    values = {"a": seeds(1.0, 2.0, 0.0), "b": seeds(10.0, 9.0, 0.0)}
    assert stopped_arms(values, "ab", 3, False, 3) == {"b": 2}
    assert stopped_arms(values, "ab", 3, True, 3) == {"a": 2}
    assert stopped_arms(values, "ab", 4, False, 3) == {}, "two looks, each at 2.5%"
    assert stopped_arms(values, "abc", 3, False, 3) == {}, "two comparisons"
    assert stopped_arms(values, "ab", 3, False, 1) == {}, "too early"
    assert stopped_arms({"a": seeds(1, 1), "b": seeds(2, 2)}, "ab", 3, False, 3) == {}, "no variation"
    assert stopped_arms({"a": seeds(1.0, 2.0), "b": {2: 9.0}}, "ab", 3, False, 3) == {}, "a failed run"
    values = {"a": seeds(1.0, 2.0, 0.0), "b": seeds(100.0, 99.0, 0.0)}
    assert stopped_arms(values, "ab", 4, False, 3) == {"b": 2}
    assert stopped_arms(values | {"a": seeds(1.0, 2.0)}, "ab", 4, False, 3) == {}, "the best arm failed later"
