"""ZeRO 1's exchanges overlap the passes on two GPUs; on one, the host waits for nothing and values are right."""

import pytest
import torch

from tests.support.ranks import run_on_gpu


@pytest.mark.parametrize("ranks", [1, 2])
def test_exchanges_run_beside_the_passes(ranks):
    if torch.cuda.device_count() < ranks:
        pytest.skip("needs two GPUs")
    run_on_gpu("tests.gpu.overlap_worker", world_size=ranks)
