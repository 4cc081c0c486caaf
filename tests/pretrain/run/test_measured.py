"""The journal in columns: valid values, torn lines; and curves with few points that keep every peak."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.run import Entry, read_journal, read_journal_table
from pretrain.run.journal import format_entry
from pretrain.run.journal_table import journal_table_of, last_of_each, moving_sum, smooth, thinned


def entry(step, **metrics):
    batch = {"rows": 4, "seq_len": 8} if "loss" in metrics else None
    named = {("eval/loss" if name == "held" else f"train/{name}"): value for name, value in metrics.items()}
    return Entry(step, 100.0 + step, named, batch)


def test_the_later_line_of_a_step_counts_metric_by_metric():
    measured = journal_table_of(
        [entry(1, loss=5.0), entry(2, loss=4.0), entry(2, held=3.0), entry(2, loss=4.5), entry(3, loss=1.0)]
    )
    assert [part.tolist() for part in measured.series("train/loss")] == [[1, 2, 3], [5.0, 4.5, 1.0]]
    assert [part.tolist() for part in measured.series("eval/loss")] == [[2], [3.0]]
    assert measured.series("train/grad_norm").steps.tolist() == []
    assert measured.trained.tolist() == [0, 1, 3, 4]
    assert measured.slots.tolist() == [32, 32, 0, 32, 32]


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["loss", "held", "grad_norm"]), st.floats(-9, 9))))
def test_it_agrees_with_the_journal(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    path.write_bytes(b"".join(format_entry(entry(step, **{name: value})) for step, name, value in lines))
    measured, journal = read_journal_table(path), read_journal(path)
    for name in ("train/loss", "eval/loss", "train/grad_norm"):
        expected = [(e.step, e.metrics[name]) for e in journal if name in e.metrics]
        assert list(zip(*(part.tolist() for part in measured.series(name)), strict=True)) == expected


def test_torn_lines_are_counted_but_for_one_that_is_being_written(tmp_path):
    path = tmp_path / "journal.jsonl"
    whole = format_entry(entry(1, loss=2.0))
    path.write_bytes(whole + b'{"step": 2, "ti\n' + b"\xff\x00\n" + whole[:20])
    measured = read_journal_table(path)
    assert (measured.torn, measured.steps.tolist()) == (2, [1])


def test_not_a_number_comes_through(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text(json.dumps({"step": 1, "time": 0, "metrics": {"train/loss": "NaN"}}) + "\n")
    assert math.isnan(read_journal_table(path).series("train/loss").values[0])


@given(st.lists(st.integers(0, 5)))
def test_last_of_each(steps):
    found = last_of_each(np.array(steps, np.int64)).tolist()
    assert found == [max(i for i, s in enumerate(steps) if s == step) for step in sorted(set(steps))]


@given(st.lists(st.floats(-1e9, 1e9), max_size=300), st.integers(1, 20))
def test_thinning_keeps_ends_extremes_and_order(values, buckets):
    steps, found = thinned(np.arange(len(values)), np.array(values, dtype=float), buckets)
    assert len(found) <= 2 * buckets + 2
    assert all(values[step] == value for step, value in zip(steps.tolist(), found.tolist(), strict=True))
    assert (np.diff(steps) > 0).all()
    if values:
        assert (steps[0], steps[-1]) == (0, len(values) - 1)
        assert (found.min(), found.max()) == (min(values), max(values))


def test_a_single_peak_of_a_million_is_kept():
    values = np.zeros(1_000_000)
    values[777_777] = 99.0
    steps, found = thinned(np.arange(1_000_000), values, 800)
    assert 777_777 in steps.tolist()
    assert found.max() == 99.0


def test_thinning_leaves_out_what_is_not_finite():
    steps, values = thinned(np.arange(4), np.array([1.0, np.nan, np.inf, 2.0]), 800)
    assert (steps.tolist(), values.tolist()) == ([0, 3], [1.0, 2.0])


@pytest.mark.parametrize("window", [0, 1, 2, 5, 50, 5000])
def test_smoothing_is_the_mean_over_the_window(window):
    values = np.random.default_rng(0).normal(size=400)
    values[[3, 90]] = np.nan
    half = min(window | 1, 399) // 2
    expected = [np.nanmean(values[max(0, i - half) : i + half + 1]) if half else values[i] for i in range(400)]
    assert smooth(values, window) == pytest.approx(np.array(expected), nan_ok=True)


def test_smoothing_after_a_huge_value_is_as_before_it():
    values = np.ones(1000)
    values[100] = 1e30
    assert smooth(values, 21)[150:].tolist() == [1.0] * 850


@pytest.mark.parametrize("window", [1, 3, 7])
def test_moving_sums(window):
    values = np.arange(20.0) ** 2
    expected = [sum(values[max(0, i - window // 2) : i + window // 2 + 1]) for i in range(20)]
    assert moving_sum(values, window).tolist() == expected
