"""Gradients in 16 bits are summed in fp32, and fp16's loss scale is lowered and resumed."""

import pytest

from tests.support.ranks import run_ranks


@pytest.mark.slow
def test_sums_of_gradients_and_loss_scales(tmp_path):
    run_ranks("tests.pretrain.engine.precision_worker", 2, str(tmp_path))
