"""ZeRO 1's exchanges overlap the passes on two GPUs; on one, the host waits for nothing and values are right."""

import os
import subprocess
import sys

import pytest
import torch

from tests.support.forked import ROOT
from tests.support.mlflow_server import free_port


@pytest.mark.parametrize("ranks", [1, 2])
def test_exchanges_run_beside_the_passes(ranks):
    if torch.cuda.device_count() < ranks:
        pytest.skip("needs two GPUs")
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = os.environ | group | {"DS_ACCELERATOR": "cuda"}
    command = [sys.executable, "-m", "tests.gpu.overlap_worker"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    started = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, **options)
        for rank in range(ranks)
    ]
    printed = [process.communicate(timeout=600)[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks, "\n".join(printed)
