"""Runs that another launcher starts: torchrun on one host, and Jobs of Kubernetes.

tests/pretrain/distributed/test_rendezvous.py has the variables of a PyTorchJob.
"""

import ipaddress
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import psutil
import pytest
import yaml

from data_prep.format import Dataset
from tests.support import prep, runs
from tests.support.in_process import command
from tests.support.mlflow_server import free_port
from tests.system.test_listening import listening

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


def start(words: Sequence[str], config: Path, **variables: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(runs.ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(words, env=environment | variables, cwd=config.parent, text=True, **streams)


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


def job_of(name: str) -> dict[str, Any]:
    """The Job in a file of configs/cluster, all of whose objects follow the schema of Kubernetes."""
    objects = [*yaml.safe_load_all((runs.ROOT / "configs/cluster" / name).read_text())]
    for each in objects:
        kubernetes_validate.validate(each, "1.33", strict=True)
    return dict(objects[-1]["spec"])


def pods_of(job: dict[str, Any], values: dict[str, str]) -> list[list[str]]:
    """The command of each pod of a Job, with some words replaced."""
    (container,) = job["template"]["spec"]["containers"]
    words = [values.get(word, word) for word in container["command"]]
    return [[word.replace("$(JOB_COMPLETION_INDEX)", str(pod)) for word in words] for pod in range(job["completions"])]


def test_a_job_of_kubernetes_has_the_losses_of_maskwright_train(
    data: Path, usual: dict[int, float], tmp_path: Path
) -> None:
    path = config_of(data, tmp_path / "run")
    here = {"torchrun": TORCHRUN, "8": "1", "pretrain-0.pretrain": "127.0.0.1", "29500": str(free_port())}
    pods = pods_of(job_of("kubernetes-train.yaml"), here | {"/data/run.yaml": str(path)})
    started = [start(pod, path) for pod in pods]
    printed = "".join(process.communicate(timeout=120)[0] for process in started)
    assert [process.returncode for process in started] == [0, 0], printed
    assert "Warning" not in printed.replace("NumaWarning", "")
    assert runs.losses(tmp_path / "run") == usual


def test_the_pods_of_a_job_prepare_a_plan(tokenizer: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(prep.texts(ord(name), 20)))
    plan = ["prep", "run", "--input", f"{tmp_path}/*.txt", "--tokenizer", tokenizer]
    for out, *only in (("books", "--plan-only"), ("usual",)):
        assert command(*plan, "--out", tmp_path / out, *only).code == 0
    job = job_of("kubernetes-prep.yaml") | {"completions": 3}
    for _, *words in pods_of(job, {"/data/books": str(tmp_path / "books")}):
        assert command(*words).code == 0
    assert command("prep", "merge", tmp_path / "books").code == 0
    books, usual = (Dataset(tmp_path / name).manifest.fingerprint for name in ("books", "usual"))
    assert books == usual


def test_ranks_of_torchrun_listen_on_loopback_alone_and_save_when_it_is_ended(
    data: Path, usual: dict[int, float], tmp_path: Path
) -> None:
    """On one host, with the losses of `maskwright train`. torchrun's own store listens on all addresses."""
    run = tmp_path / "run"
    path = config_of(data, run, 100_000)
    module = ("-m", "pretrain.train", "--config", str(path))
    agent = start((TORCHRUN, "--standalone", "--nproc-per-node", "2", *module), path)
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
