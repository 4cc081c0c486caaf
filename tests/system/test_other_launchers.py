"""Runs that another launcher starts: torchrun on one host and on two, and a PyTorchJob of Kubernetes."""

import ipaddress
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.support import runs
from tests.support.mlflow_server import free_port
from tests.system.test_listening import listening

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")),)


def pod(rank: int, port: str) -> dict[str, str]:
    """The variables of a PyTorchJob's pod with one process."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)}
    return job | {"PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1", "PYTHONUNBUFFERED": "1"}


def start(command: Sequence[str], config: Path, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*command, "-m", "pretrain.train", "--config", str(config)],
        env=os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(runs.ROOT)} | variables,
        cwd=config.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize("launcher", ["one host", "two hosts", "PyTorchJob"])
def test_the_losses_are_those_of_maskwright_train(launcher: str, tmp_path: Path) -> None:
    config = runs.tiny_config(runs.tiny_data(tmp_path / "data"), tmp_path / "run", train__steps=4, track__uri="none")
    path, port = runs.write_config(tmp_path / "c.yaml", config), free_port()
    agent = (*TORCHRUN, "--master-addr", "127.0.0.1", "--master-port", port)
    started = {
        "one host": lambda: [start((*agent, "--nproc-per-node", "2"), path)],
        "two hosts": lambda: [start((*agent, "--nnodes", "2", "--node-rank", rank), path) for rank in "01"],
        "PyTorchJob": lambda: [start([sys.executable], path, **pod(rank, port)) for rank in (0, 1)],
    }[launcher]()
    printed = "".join(process.communicate(timeout=120)[0] for process in started)
    assert [process.returncode for process in started] == [0] * len(started), printed
    assert "Warning" not in printed.replace("NumaWarning", "")
    runs.succeed("train", path, "--procs", "2", f"run.dir={tmp_path}/usual")
    assert runs.losses(tmp_path / "run") == runs.losses(tmp_path / "usual")


def test_ranks_of_torchrun_listen_on_loopback_alone_and_save_when_it_is_ended(tmp_path: Path) -> None:
    """On one host. torchrun's own store listens on all addresses."""
    config = runs.tiny_config(runs.tiny_data(tmp_path / "data"), tmp_path / "run", train__steps=100_000)
    agent = start((*TORCHRUN, "--standalone", "--nproc-per-node", "2"), runs.write_config(tmp_path / "c.yaml", config))
    runs.wait_for_step(tmp_path / "run", 2)
    ranks = psutil.Process(agent.pid).children(recursive=True)
    addresses = [address for rank in ranks for address in listening(rank)]
    agent.terminate()
    printed = agent.communicate(timeout=60)[0]
    assert addresses, printed
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses
    status = runs.status(tmp_path / "run")
    assert (status["state"], status["reason"]) == ("stopped", "received SIGTERM"), printed
