"""Training on two hosts without Slurm: DeepSpeed's launcher over ssh and without, and torchrun."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs import losses
from tests.system.cluster.cluster import enter, namespaces, skip_without
from tests.system.cluster.jobs import ENVIRONMENT, ROOT, train_here, write_run

STEPS = 6
SECONDS = "240"  # on a busy machine


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The words before a command that runs on `desk`, a machine that reaches two hosts, h1 and h2, only by ssh."""
    skip_without(["sshd", "ssh", "ssh-keygen", "pdsh"], "openssh-server openssh-client pdsh iproute2")
    with namespaces("hosts.sh", tmp_path_factory.mktemp("hosts"), 2) as holder_pid:
        yield [*enter(holder_pid), f"--wd={ROOT}"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this module's runs, with a hostfile beside it."""
    path = write_run(tmp_path_factory.mktemp("runs"), STEPS)
    path.with_name("hostfile").write_text("h1 slots=1\nh2 slots=1\n")
    return path


@pytest.fixture(scope="module")
def reference(config: Path) -> dict[int, float]:
    """The losses of the same config trained by two processes on this host."""
    return train_here(config, 2)


MODULE = "--module pretrain.train --config config.yaml"
COMMANDS = {
    "deepspeed": f"deepspeed --hostfile hostfile --num_nodes 2 --num_gpus 1 {MODULE}",
    "deepspeed --no_ssh": "deepspeed --hostfile hostfile --num_nodes 2 --num_gpus 1 --no_ssh --node_rank NODE "
    f"--master_addr 10.78.0.11 --master_port 29511 --no_local_rank {MODULE}",
    "torchrun": "torchrun --nnodes 2 --node-rank NODE --nproc-per-node 1 --master-addr 10.78.0.11 --master-port 29512 "
    "-m pretrain.train --config config.yaml",
}
"""Commands of docs/multi-node.md. A command with NODE starts on each host, with the number of the host there."""


SHORT = [pytest.param(name, marks=[pytest.mark.short] * ("no_ssh" not in name)) for name in COMMANDS]
"""deepspeed.sbatch uses --no_ssh too."""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", SHORT)
def test_two_hosts_train_like_two_processes(
    launcher: str, desk: list[str], config: Path, reference: dict[int, float], tmp_path: Path
) -> None:
    exports = " ".join(f"{name}={value}" for name, value in (ENVIRONMENT | {"DS_ACCELERATOR": "cpu"}).items())
    line = f"cd {config.parent} && {exports} {COMMANDS[launcher]} run.dir={tmp_path}/run"
    lines = [("h1", line)] if "NODE" not in line else [(f"h{n + 1}", line.replace("NODE", str(n))) for n in (0, 1)]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ssh = [*desk, "timeout", SECONDS, "ssh"]
    started = [subprocess.Popen([*ssh, host, line], text=True, **streams) for host, line in lines]
    logs = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), logs
    assert losses(tmp_path / "run") == reference
    assert sorted(reference) == list(range(1, STEPS + 1))
