"""Training on hosts that are reached by ssh: `maskwright launch hosts`, and DeepSpeed's own launchers."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.cluster.hosts import Hosts, ssh_hosts, why_unavailable
from tests.datasets import make_dataset
from tests.secrets import SECRETS, CommandLines, leaks

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
STEPS = 20
SECONDS = "240"  # with the build of DeepSpeed's extension on a busy machine
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PATH": f"{BIN}:{os.environ['PATH']}",  # one ninja for all: another's builds would be redone
    "PYTHONPATH": str(ROOT),
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts. Skips where there can be none, unless MASKWRIGHT_REQUIRE_SLURM=1 (set in CI) forbids that."""
    reason = why_unavailable()
    if reason and os.environ.get("MASKWRIGHT_REQUIRE_SLURM") == "1":
        pytest.fail(f"{reason}, and MASKWRIGHT_REQUIRE_SLURM=1 says that they must run")
    if reason:
        pytest.skip(reason)
    with ssh_hosts(tmp_path_factory.mktemp("hosts"), number=2) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the data set, the config and the hostfile of this module's runs."""
    path = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    make_dataset(path / "data", [rng.integers(5, 1000, size=int(n)) for n in rng.integers(20, 200, size=400)])
    config = {
        "run": {"dir": str(path / "local"), "seed": 3},
        "data": {"train": str(path / "data"), "seq_len": 64},
        "model": {"size": {"layers": 2, "hidden": 64, "heads": 2}},
        "train": {"steps": STEPS, "global_batch_size": 8, "precision": "fp32"},
        "track": {"uri": f"sqlite:///{path}/mlflow.db"},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "hostfile").write_text("h1 slots=1\nh2 slots=1\n")
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[int, float]:
    """The losses of the same config trained by two processes on this host."""
    command = [sys.executable, "-m", "launchers.cli", "train", str(folder / "config.yaml"), "--procs", "2"]
    subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, stdin=subprocess.DEVNULL, check=True)
    return losses(folder / "local")


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return {line["step"]: line["metrics"]["train/loss"] for line in lines if "train/loss" in line["metrics"]}


def launch_command(folder: Path, run: Path, *options: str) -> list[str]:
    command = ["timeout", "--kill-after=10", SECONDS, str(BIN / "python"), "-m", "launchers.cli", "launch", "hosts"]
    command += [str(folder / "config.yaml"), "--hostfile", str(folder / "hostfile"), "--nodes", "2"]
    return [*command, "--cpu", *options, f"run.dir={run}"]


def launch(hosts: Hosts, folder: Path, run: Path, *options: str, **environment: str) -> tuple[int, str]:
    return hosts.run(*launch_command(folder, run, *options), cwd=ROOT, **ENVIRONMENT, **environment)


def ranks(hosts: Hosts) -> list[str]:
    """The command lines of training processes on all hosts."""
    _, listed = hosts.run("ps", "-eww", "-o", "args", cwd=ROOT)
    return [line for line in listed.splitlines() if "-m pretrain.train" in line]


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.1)


def test_two_hosts_train_like_two_processes_and_tell_no_secret(
    hosts: Hosts, folder: Path, reference: dict[int, float]
) -> None:
    run = folder / "ssh" / "run"
    uri = f"sqlite:///{folder}/ssh/mlflow.db"
    with CommandLines() as seen:
        code, log = launch(hosts, folder, run, f"track.uri={uri}", **SECRETS)
    assert code == 0, log
    assert "2 hosts agree (h1, h2): 2 processes, rank 0 at 10.78.0.11" in log
    assert losses(run) == reference
    assert sorted(reference) == list(range(1, STEPS + 1))
    assert len(seen.knowing) == 2, "each rank has the secrets in its environment"
    (run / "log").write_text(log)
    assert not seen.leaked
    assert not leaks(folder / "ssh")
    assert not ranks(hosts)
