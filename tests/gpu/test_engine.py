"""The engine on a GPU, with one process."""

import os
import subprocess
import sys

import pytest

from tests.support.forked import ROOT
from tests.support.mlflow_server import free_port


def run_rank(module: str, **more: str) -> None:
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment = os.environ | ranks | {"MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cuda"} | more
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_skipped_steps_leave_no_trace():
    run_rank("tests.gpu.engine_worker")


@pytest.mark.parametrize("setting", ["expandable_segments:True", "expandable_segments:False"])
def test_a_pass_that_does_not_fit_into_memory_is_noticed(setting):
    """Training uses segments that grow."""
    run_rank("tests.pretrain.guards.memory_worker", PYTORCH_ALLOC_CONF=setting)
