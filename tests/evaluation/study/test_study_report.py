"""Report of a study: its page, its conclusion sentences, and missing results."""

import json

import pytest

from evaluation.study import write_study_report
from evaluation.study.comparison_report import cell, conclusion, picture_of
from evaluation.study.study_results import METRICS, compare_arms, read_results
from tests.support.study_runs import Pretended, kept, run


def test_the_report_says_no_more_than_the_intervals(config):
    study = kept(config, over=["masking.strategy=token,span,whole_word"], seeds=4)
    run(study, Pretended({"strategy=token": 4.0, "strategy=span": 4.0, "strategy=whole_word": 5.0}))
    page = write_study_report(study)
    report = json.loads((study.folder / "report.json").read_text())
    metric = report["metrics"]["held_out"]
    said = metric["conclusion"]
    best, other = ("token", "span") if said.startswith("strategy=token") else ("span", "token")
    begin, worse, level = said.split("; ")
    assert begin == f"strategy={best} has the lowest mean of 4 seeds"
    assert worse == f"significantly worse than strategy={best}: strategy=whole_word"
    assert level == f"not significantly: strategy={other}."
    assert metric["from_baseline"]["strategy=whole_word"]["significant"]
    low, high = metric["from_baseline"]["strategy=span"]["interval"]
    assert low < 0 < high
    assert metric["means"]["strategy=token"]["n"] == 4
    assert report["arms"]["strategy=span"] == {"masking.strategy": "span"}
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    table = (study.folder / "report.md").read_text()
    assert "3 arms, 4 seeds each; bert 1 x 32, mlm, 40 steps, batches" in table
    assert "rows of 32 tokens; baseline strategy=token.\n" in table
    assert "| arm | seeds | held-out loss | minus strategy=token | masked accuracy | steps |" in table
    assert "| strategy=span | 4 | " in table


FALLS = "{schedule: linear, start: 0.3, end: 0.15}"


@pytest.mark.parametrize(
    "over,values,log,labels,lines,means",
    [  # means: of the first line
        (["optim.lr=1e-3,1e-2,1e-4"], [1e-4, 1e-3, 1e-2], True, "0.0001 0.001 0.01", ["held-out loss"], [5, 3, 4]),
        (["masking.rate=0.3,0.15", "optim.lr=1,2"], [0.15, 0.3], False, "0.15 0.3", ["lr=1", "lr=2"], [5, 3]),
        (["model.arch=bert,roberta", "optim.lr=1,2"], [1, 2], False, "1 2", ["arch=bert", "arch=roberta"], [3, 4]),
        (["masking.strategy=token,span"], [0, 1], False, "token span", ["held-out loss"], [3, 4]),
        ([f"masking.rate=0.15,{FALLS}"], [0, 1], False, "0.15 linear-0.3-0.15", ["held-out loss"], [3, 4]),
    ],
)
def test_the_picture_has_the_measure_over_the_key_with_the_most_values(config, over, values, log, labels, lines, means):
    study = kept(config, over=over)
    run(study, Pretended({arm.name: 3.0 + number for number, arm in enumerate(study.arms)}))
    (compared, *_) = read_results(study).comparisons
    picture = picture_of(study, compared)
    (key, axis), (chart,) = ((picture["key"].pop("name"), picture["key"])), picture["charts"]
    assert axis == {"values": values, "labels": labels.split(), "log": log}
    assert chart["title"] == f"held-out loss by {key}"
    assert [line["label"] for line in chart["lines"]] == lines
    assert [round(mean) for mean in chart["lines"][0]["y"]] == means
    for line in chart["lines"]:
        assert line["x"] == values
        assert all(low < mean < high for low, mean, high in zip(line["low"], line["y"], line["high"], strict=True))


def test_measures_that_cannot_be_compared_are_left_out(config, tmp_path):
    """Causal models see other tokens: their losses are not beside those of masked models, the pairs are."""
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("{}")
    study = kept(config, over=["objective=mlm,clm"], pairs=str(pairs))
    run(study, Pretended())
    write_study_report(study)
    assert "Held-out losses are not compared" in (study.folder / "report.md").read_text()
    values = json.loads((study.folder / "report.json").read_text())["values"]
    assert {"pairs", "steps"} < values.keys()
    assert "held_out" not in values


def compared(higher: bool, **values):
    metric = next(one for one in METRICS if one.better == ("higher" if higher else "lower"))
    by_seed = {arm: dict(enumerate(numbers, 1)) for arm, numbers in values.items()}
    return compare_arms(metric, by_seed, "a")


def test_conclusions_in_words():
    one = conclusion(compared(False, a=[3.0], b=[4.0]))
    assert one == "a has the lowest mean of 1 seed; fewer than 3 seeds show no significant difference."
    clear = compared(False, a=[3.0, 3.1, 3.0], b=[4.0, 4.1, 4.01])
    assert conclusion(clear) == "a has the lowest mean of 3 seeds; significantly worse than a: b."
    unclear = conclusion(compared(True, a=[0.31, 0.35, 0.30], b=[0.32, 0.31, 0.31]))
    assert unclear == "a has the highest mean of 3 seeds; significantly worse than a: none; not significantly: b."
    minus = compared(True, a=[0.3, 0.3, 0.3], b=[0.31, 0.33, 0.32]).from_baseline["b"]
    assert cell(minus, "share").startswith("+2.00 [")
    many = {f"b{number}": [0.1, 0.11, 0.1, 0.11] for number in range(6)}
    said = conclusion(compared(True, a=[0.91, 0.9, 0.92, 0.9], c=[0.9, 0.91, 0.91, 0.9], **many))
    assert said.endswith("; significantly worse than a: b0, b1, b2 and 3 more; not significantly: c.")


def test_no_mean_is_the_highest_of_equal_ones():
    same = {"a": [0.3, 0.4], "b": [0.4, 0.3]}
    assert conclusion(compared(True, **same)).startswith("a and b have the same mean of 2 seeds;")
    partial = compare_arms(METRICS[0], {"a": {1: 2.0, 2: 2.1}, "b": {1: 2.0, 2: 2.1}, "c": {7: 1.0}}, "a")
    assert conclusion(partial).startswith("a and b have the same mean of 2 seeds (left out for lack of seeds: c);")
    tied = conclusion(compared(True, **same, c=[0.1, 0.2]))
    assert tied.startswith("a and b have the highest mean of 2 seeds;")
    nothing = conclusion(compare_arms(METRICS[0], {"a": {1: 3.0}, "b": {2: 3.1}}, "a"))
    assert nothing == "No two arms have a result of the same seed, so they cannot be compared."


def test_arms_that_were_stopped_are_not_compared_with_those_that_went_on():
    values = {"a": {1: 3.0, 2: 3.1, 3: 3.0}, "b": {1: 9.0, 2: 9.1}, "c": {1: 4.0, 2: 4.1, 3: 4.01}}
    assert conclusion(compare_arms(METRICS[0], values, "b", {"b": 2})).endswith("significantly worse than a: c.")
    one = conclusion(compare_arms(METRICS[0], values, "b", {"b": 2, "c": 2}))
    assert one == "a is the only arm that was not stopped early."


def test_two_seeds_make_no_difference_significant():
    """Two equal-looking differences have a tiny p-value under Student's t, and say little about other seeds."""
    values = {"a": [3.0, 3.1, 3.2], "b": [4.0, 4.1001, 4.2]}
    three, two = (compared(False, **{arm: of[:n] for arm, of in values.items()}) for n in (3, 2))
    assert three.from_baseline["b"].significant
    minus = two.from_baseline["b"]
    assert (minus.significant, minus.interval, minus.p_adjusted) == (False, None, 1.0)
    assert "fewer than 3 seeds show no significant difference" in conclusion(two)


def test_an_interval_has_no_values_that_cannot_exist():
    for key, values, ends in (("seconds", [1.0, 9.0], (0.0, None)), ("masked_accuracy", [0.1, 0.9], (0.0, 1.0))):
        metric = next(one for one in METRICS if one.key == key)
        interval = compare_arms(metric, {"a": dict(enumerate(values))}, "a").means["a"].interval
        assert interval[0] == ends[0]
        assert ends[1] in (None, interval[1])
