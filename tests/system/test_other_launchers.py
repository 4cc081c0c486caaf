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


LAST = 4


def config_of(data: Path, run: Path, steps: int = LAST) -> Path:
    """A run whose steps do not depend on their number."""
    return runs.config_file(data, run, train__steps=steps, track__uri="none", schedule__kind="constant")


@pytest.fixture(scope="module")
def usual(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run of `maskwright train`."""
    run = tmp_path_factory.mktemp("usual") / "run"
    runs.succeed("train", config_of(data, run), "--procs", "2")
    return runs.losses(run)


@pytest.mark.parametrize("launcher", [pytest.param("two hosts", marks=pytest.mark.slow), "PyTorchJob"])
def test_the_losses_are_those_of_maskwright_train(
    launcher: str, data: Path, usual: dict[int, float], tmp_path: Path
) -> None:
    """Slow: tests/system/cluster/test_hosts.py starts torchrun on two hosts, too."""
    path, port = config_of(data, tmp_path / "run"), str(free_port())
    agent = (*TORCHRUN, "--master-addr", "127.0.0.1", "--master-port", port, "--nnodes", "2", "--node-rank")
    started = {
        "two hosts": lambda: [start((*agent, rank), path) for rank in "01"],
        "PyTorchJob": lambda: [start([sys.executable], path, **pod(rank, port)) for rank in (0, 1)],
    }[launcher]()
    printed = "".join(process.communicate(timeout=120)[0] for process in started)
    assert [process.returncode for process in started] == [0, 0], printed
    assert "Warning" not in printed.replace("NumaWarning", "")
    assert runs.losses(tmp_path / "run") == usual


def test_ranks_of_torchrun_listen_on_loopback_alone_and_save_when_it_is_ended(
    data: Path, usual: dict[int, float], tmp_path: Path
) -> None:
    """On one host, with the losses of `maskwright train`. torchrun's own store listens on all addresses."""
    run = tmp_path / "run"
    agent = start((*TORCHRUN, "--standalone", "--nproc-per-node", "2"), config_of(data, run, 100_000))
    runs.wait_for_step(run, LAST)
    ranks = psutil.Process(agent.pid).children(recursive=True)
    addresses = [address for rank in ranks for address in listening(rank)]
    agent.terminate()
    printed = agent.communicate(timeout=60)[0]
    assert addresses, printed
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses
    status = runs.status(run)
    assert (status["state"], status["reason"]) == ("stopped", "received SIGTERM"), printed
    assert {step: loss for step, loss in runs.losses(run).items() if step <= LAST} == usual
