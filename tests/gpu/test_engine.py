"""The engine on a GPU, with one process."""

import os
import subprocess
import sys

from tests.support.forked import ROOT
from tests.support.mlflow_server import free_port


def test_skipped_steps_leave_no_trace():
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment = os.environ | ranks | {"MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cuda"}
    command = [sys.executable, "-m", "tests.gpu.engine_worker"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
