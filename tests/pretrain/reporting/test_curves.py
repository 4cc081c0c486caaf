"""Curves with few points keep every peak; moving means of noisy metrics; losses that have diverged."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.reporting.curve_charts import smooth, thinned
from pretrain.reporting.divergence import divergence
from pretrain.run import Entry, JournalTable


@given(st.lists(st.floats(-1e9, 1e9), max_size=300), st.integers(1, 20))
def test_thinning_keeps_ends_extremes_and_order(values, buckets):
    steps, found = thinned(np.arange(len(values)), np.array(values, dtype=float), buckets)
    assert len(found) <= 2 * buckets + 2
    assert all(values[step] == value for step, value in zip(steps.tolist(), found.tolist(), strict=True))
    assert (np.diff(steps) > 0).all()
    if values:
        assert (steps[0], steps[-1]) == (0, len(values) - 1)
        assert (found.min(), found.max()) == (min(values), max(values))


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


VOCABULARY = 1000  # guessing costs 6.91 nats


def table(losses, phases=None) -> JournalTable:
    marks = [{} if phases is None else {"train/phase": phase} for phase in phases or losses]
    return JournalTable.of(
        Entry(step, 1.0, {"train/loss": loss, **mark})
        for step, (loss, mark) in enumerate(zip(losses, marks, strict=True), 1)
    )


def test_abandoned_steps_are_no_divergence():
    learned = [3 + 5 * math.exp(-step / 100) for step in range(1000)]
    again = [*enumerate([*learned, *[9.0] * 100], 1), *enumerate([3.0] * 50, 1001)]
    entries = [Entry(step, 1.0, {"train/loss": loss}, {"rows": 1, "seq_len": 8}) for step, loss in again]
    assert divergence(JournalTable.of(entries[:1100]), VOCABULARY)
    assert divergence(JournalTable.of(entries), VOCABULARY) is None


def noisy(*means: float, steps: int = 100) -> list[float]:
    rng = np.random.default_rng(0)
    return [mean + rng.normal(0, 0.3) for mean in means for _ in range(steps)]


@pytest.mark.parametrize(
    "losses, words",
    [
        ([6.9, *noisy(100_000.0)], "above the loss of the first step (6.9) and of guessing (6.908)"),
        ([6.9, 4.0, math.nan], "is nan"),
        ([6.9, math.inf], "is inf"),
        ([6.9, 9.0], "above the loss of the first step"),
        (noisy(7, 5, 3, 6.5), "after it had fallen from 7.0"),
    ],
)
def test_a_loss_that_ends_far_above_where_it_was_has_diverged(losses, words):
    assert words in divergence(table(losses), VOCABULARY)


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [6.9],
        [7.2, 7.3],
        noisy(6.9),  # an untrained model
        noisy(6.9, 6.0, 5.5),
        noisy(7, 5, 3, 4, 3),
        [6.9, 50.0, *noisy(6.0)],  # a spike
        noisy(2.0, 2.3),  # from trained weights
        noisy(20.0, 15.0),  # a weighted objective
    ],
)
def test_ordinary_losses_have_not(losses):
    assert divergence(table(losses), VOCABULARY) is None


def test_a_phase_is_compared_with_itself():
    losses, phases = noisy(7, 3, 6.0, 5.9), [0] * 200 + [1] * 200
    assert divergence(table(losses), VOCABULARY)
    assert divergence(table(losses, phases), VOCABULARY) is None


def test_without_the_size_of_the_vocabulary_a_rise_from_trained_weights_is_not_judged():
    assert divergence(table(noisy(7.0, 9.0)), None) is None
