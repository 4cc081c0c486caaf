"""ZeRO 1 exchanges gradients and weights during the passes: same bits, spans that overlap."""

import pytest

from tests.support.ranks import run_ranks

WORKER = "tests.pretrain.engine.overlap_worker"


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_bits_are_those_of_exchanges_between_the_passes(ranks):
    run_ranks(WORKER, ranks, "bits")


def test_a_trace_shows_exchanges_during_both_passes():
    run_ranks(WORKER, 2, "trace")


def test_bf16_halves_what_is_sent_and_little_is_lost():
    run_ranks(WORKER, 2, "dtypes")


def test_gradients_in_several_passes_are_refused_or_right():
    run_ranks(WORKER, 2, "passes")
