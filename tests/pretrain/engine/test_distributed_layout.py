"""Weights, Adam's moments and the step survive any change of processes, ZeRO stage and precision exactly."""

import pytest

from tests.support.ranks import run_ranks

WORKER = "tests.pretrain.engine.layout_worker"


@pytest.mark.slow
def test_every_layout_takes_up_another(tmp_path):
    """Three ranks share nothing evenly."""
    run_ranks(WORKER, 1, str(tmp_path), "save")
    run_ranks(WORKER, 3, str(tmp_path), "1", "some", "save")
    run_ranks(WORKER, 2, str(tmp_path), "3", "some")


@pytest.mark.slow
def test_every_layout_takes_up_every_other(tmp_path):
    run_ranks(WORKER, 1, str(tmp_path), "save")
    run_ranks(WORKER, 2, str(tmp_path), "1", "all")
