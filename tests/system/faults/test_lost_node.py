"""A lost node whose connections stay open: the other node names it in time, and ends."""

import base64
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pretrain import checkpoint
from tests.support import runs
from tests.support.checkpoints import must_be_committed
from tests.support.forked import ROOT
from tests.support.mlflow_server import free_port

HANG_SECONDS, EVERY_STEPS = 4, 5


def start_node(number: int, port: int, config: Path, log: Path) -> "subprocess.Popen[bytes]":
    """DeepSpeed's launcher with two ranks on a host named node-NUMBER, one of two."""
    world = base64.urlsafe_b64encode(json.dumps({"node-0": [0, 1], "node-1": [0, 1]}).encode()).decode()
    launch = [sys.executable, "-m", "deepspeed.launcher.launch", "--log_level=critical", f"--world_info={world}"]
    launch += [f"--node_rank={number}", "--master_addr=127.0.0.1", f"--master_port={port}"]
    launch += ["--module", "pretrain.train", "--config", str(config)]
    command = ["unshare", "--uts", "sh", "-c", f'hostname node-{number} && exec "$@"', "sh", *launch]
    environment = runs.environment() | {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    with open(log, "ab") as output:
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )


@pytest.mark.slow
def test_a_node_whose_processes_all_stop_is_named_and_the_other_ends(tmp_path):
    if subprocess.run(["unshare", "--uts", "hostname", "node"], capture_output=True, check=False).returncode:
        pytest.skip("another host name needs root")
    data, run, port = runs.tiny_data(tmp_path / "data"), tmp_path / "run", free_port()
    settings = {"train__steps": 100_000, "guard__hang_seconds": HANG_SECONDS, "checkpoint__every_steps": EVERY_STEPS}
    config = runs.write_config(tmp_path / "run.yaml", runs.tiny_config(data, run, **settings))
    nodes = [start_node(number, port, config, tmp_path / f"log-{number}") for number in (0, 1)]
    try:
        runs.wait_for_step(run, 2 * EVERY_STEPS + 2)
        lost = [psutil.Process(nodes[1].pid), *psutil.Process(nodes[1].pid).children(recursive=True)]
        for process in lost:
            process.suspend()
        since = time.monotonic()
        assert nodes[0].wait(60) == 1
        assert time.monotonic() - since < 5 * HANG_SECONDS
        status = runs.status(run)
        assert status["state"] == "failed"
        named = r"no sign of life from rank 2 \(on node-1\), last seen at step \d+, \w+, rank 3 \(on node-1\)"
        assert re.search(named, status["reason"]), status["reason"]
        assert "node-0" not in status["reason"]
        assert all(process.status() == psutil.STATUS_STOPPED for process in lost), "they had no part in it"
        newest, path = checkpoint.committed(run / "checkpoints")[0]
        assert newest >= must_be_committed(max(runs.losses(run)), EVERY_STEPS, asynchronous=True)
        assert checkpoint.verify(path) is None
    finally:
        for node in nodes:
            for process in [*psutil.Process(node.pid).children(recursive=True)] if node.poll() is None else []:
                process.kill()
            node.kill()
            node.wait()
