"""Which losses count as diverged, and which do not."""

import math

import numpy as np
import pytest

from pretrain.reporting.divergence import divergence
from pretrain.run import Entry, JournalTable

VOCABULARY = 1000  # guessing costs 6.91 nats


def table(losses, phases=None) -> JournalTable:
    marks = [{} if phases is None else {"train/phase": phase} for phase in phases or losses]
    return JournalTable.of(
        Entry(step, 1.0, {"train/loss": loss, **mark})
        for step, (loss, mark) in enumerate(zip(losses, marks, strict=True), 1)
    )


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
