"""The bytes that `maskwright plan` tells are those of the real engine."""

from tests.support.ranks import run_ranks


def test_bytes_of_weights_gradients_and_optimizer_state():
    run_ranks("tests.pretrain.planning.memory_worker", 2)
