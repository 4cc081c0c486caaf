"""The engine on a GPU, with one process. The names of cases that compile have "compiled" in them, see conftest."""

import pytest

from tests.support.ranks import run_on_gpu

RANK = "tests.support.rank_process"


def test_skipped_steps_leave_no_trace():
    run_on_gpu("tests.gpu.engine_worker")


@pytest.mark.parametrize("setting", ["expandable_segments:True", "expandable_segments:False"])
def test_a_pass_that_does_not_fit_into_memory_is_noticed(setting):
    """Training uses segments that grow."""
    run_on_gpu(RANK, "tests.pretrain.trial.test_trial_step", "check_memory", PYTORCH_ALLOC_CONF=setting)


@pytest.mark.parametrize("path", ["plain", "fused", "compiled", "compiled-fused"])
def test_two_deterministic_trainings_give_the_same_bits(path):
    run_on_gpu(RANK, "tests.pretrain.engine.test_deterministic", "check", path)
