"""The bytes that `maskwright plan` tells are those of the real engine."""

import pytest

from tests.support.ranks import run_ranks


@pytest.mark.parametrize("cases", ["quick", pytest.param("slow", marks=pytest.mark.slow)])
def test_bytes_of_weights_gradients_and_optimizer_state(cases):
    run_ranks("tests.distributed.memory_worker", 2, cases)
