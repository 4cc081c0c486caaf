"""ZeRO 1 exchanges gradients and weights during the passes: same bits, spans that overlap, old checkpoints."""

import pytest

from tests.support.ranks import run_ranks

WORKER = "tests.pretrain.engine.overlap_worker"


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_bits_are_those_of_exchanges_between_the_passes(ranks, tmp_path):
    run_ranks(WORKER, ranks, "bits", str(tmp_path))


def test_a_trace_shows_exchanges_during_both_passes(tmp_path):
    run_ranks(WORKER, 2, "trace", str(tmp_path))


def test_bf16_halves_what_is_sent_and_little_is_lost(tmp_path):
    run_ranks(WORKER, 2, "dtypes", str(tmp_path))


def test_gradients_in_several_passes_are_refused_or_right(tmp_path):
    run_ranks(WORKER, 2, "passes", str(tmp_path))


def test_a_checkpoint_of_earlier_versions_resumes(tmp_path):
    run_ranks(WORKER, 2, "old", str(tmp_path))
