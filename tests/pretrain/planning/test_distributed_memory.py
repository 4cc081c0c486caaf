"""Memory by `maskwright plan` equals the memory of the real engine."""

from tests.support.ranks import run_ranks


def test_bytes_of_weights_gradients_and_optimizer_state():
    run_ranks("tests.pretrain.planning.memory_worker", 2)
