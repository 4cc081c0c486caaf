"""Report of a study: its page, its conclusion sentences, and missing results."""

import json
import re

from evaluation.study import write_study_report
from evaluation.study.comparison_report import cell, conclusion
from evaluation.study.study_results import METRICS, compare_arms, curve
from tests.support.study_runs import Pretended, kept, run


def test_the_report_says_no_more_than_the_intervals(config):
    arms = (["token", "span", "whole_word"], ["0.15"], ["80/10/10"])
    study = kept(config, arms=arms, seeds=4)
    run(study, Pretended({"token-0.15": 4.0, "span-0.15": 4.0, "whole_word-0.15": 5.0}))
    page = write_study_report(study)
    found = json.loads((study.folder / "report.json").read_text())
    said = " ".join(found["conclusions"]["held_out"])
    best, other = ("token-0.15", "span-0.15") if "By held-out loss, token" in said else ("span-0.15", "token-0.15")
    assert f"{best} is recommended over some arms, but not over {other} (4 seeds)." in said
    assert f"{best} is better than whole_word-0.15 (-1.0" in said
    assert f"with 4 seeds {best} does not differ significantly from {other}" in said
    metric = found["metrics"]["held_out"]
    assert metric["from_baseline"]["whole_word-0.15"]["significant"]
    low, high = metric["from_baseline"]["span-0.15"]["interval"]
    assert low < 0 < high
    assert metric["means"]["token-0.15"]["n"] == 4
    text = page.read_text()
    assert "Results" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "| span-0.15 | " in (study.folder / "report.md").read_text()
    assert '["arm","strategy"],["token-0.15","token"],["span-0.15","span"]' in text, "what the arms differ in, as cells"


def compared(higher: bool, **values):
    metric = next(one for one in METRICS if one.better == ("higher" if higher else "lower"))
    by_seed = {arm: dict(enumerate(numbers, 1)) for arm, numbers in values.items()}
    return compare_arms(metric, by_seed, "a")


def test_conclusions_in_words():
    assert conclusion(compared(False, a=[3.0], b=[4.0]), 2) == [
        "By held-out loss no arm can be recommended: one seed does not show the variation by chance. a has the "
        "lowest value."
    ]
    clear = conclusion(compared(False, a=[3.0, 3.1, 3.0], b=[4.0, 4.1, 4.01]), 3)
    assert clear[0] == "a is recommended by held-out loss (3 seeds)."
    assert re.fullmatch(r"a is better than b \(-1\.0033 \[-1\.0\d+, -0\.9\d+\] nats\)\.", clear[1])
    assert clear[2] == "1 of 3 arms have no result and are left out."
    unclear = " ".join(conclusion(compared(True, a=[0.31, 0.35, 0.30], b=[0.32, 0.31, 0.31]), 2))
    assert unclear.startswith(
        "By masked accuracy no arm can be recommended (3 seeds). a has the highest mean, but with 3 seeds a"
    )
    assert "a is better" not in unclear
    minus = compared(True, a=[0.3, 0.3, 0.3], b=[0.31, 0.33, 0.32]).from_baseline["b"]
    assert cell(minus, "share").startswith("+2.00 [")


def test_no_mean_is_the_highest_of_equal_ones():
    same = {"a": [0.3, 0.4], "b": [0.4, 0.3]}
    assert conclusion(compared(True, **same), 2)[1:] == ["a and b have the same mean."]
    partial = compare_arms(METRICS[0], {"a": {1: 2.0, 2: 2.1}, "b": {1: 2.0, 2: 2.1}, "c": {7: 1.0}}, "a")
    assert "a and b have the same mean." in conclusion(partial, 3), "c, which is left out, has another"
    tied = conclusion(compared(True, **same, c=[0.1, 0.9]), 3)
    assert tied[1].startswith("c has the highest mean, but with 2 seeds c does not differ")
    tied = conclusion(compared(True, **same, c=[0.1, 0.2]), 3)
    assert tied[1].startswith("a and b have the highest mean, but with 2 seeds a does not differ significantly from c")


def test_two_seeds_make_no_difference_significant():
    """Two equal-looking differences have a tiny p-value under Student's t, and say little about other seeds."""
    values = {"a": [3.0, 3.1, 3.2], "b": [4.0, 4.1001, 4.2]}
    three, two = (compared(False, **{arm: of[:n] for arm, of in values.items()}) for n in (3, 2))
    assert three.from_baseline["b"].significant
    minus = two.from_baseline["b"]
    assert (minus.significant, minus.interval, minus.p_adjusted) == (False, None, 1.0)
    assert "no arm can be recommended" in conclusion(two, 2)[0]


def test_an_interval_has_no_values_that_cannot_exist():
    for key, values, ends in (("seconds", [1.0, 9.0], (0.0, None)), ("masked_accuracy", [0.1, 0.9], (0.0, 1.0))):
        metric = next(one for one in METRICS if one.key == key)
        interval = compare_arms(metric, {"a": dict(enumerate(values))}, "a").means["a"].interval
        assert interval[0] == ends[0]
        assert ends[1] in (None, interval[1])


def test_an_arm_without_all_seeds_is_named():
    found = conclusion(compared(False, a=[3.0, 3.1, 3.0], b=[4.0, 4.1, 4.01], c=[2.0]), 4)
    assert found[0] == "a is recommended by held-out loss (3 seeds)."
    assert found[2:] == [
        "1 of 4 arms have no result and are left out.",
        "Left out, for lack of the 3 seeds of the others: c.",
    ]
    metric = next(one for one in METRICS if one.better)
    (nothing,) = conclusion(compare_arms(metric, {"a": {1: 3.0}, "b": {2: 3.1}}, "a"), 2)
    assert nothing == "No two arms have a result of the same seed, so held-out loss cannot be compared."


def test_no_curve_without_an_evaluation():
    assert curve("a", [], 0) == {}
