"""Training on hosts that are reached by ssh: `maskwright launch hosts`, and DeepSpeed's own launchers."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import runs
from tests.support.datasets import make_dataset
from tests.support.secrets import SECRETS, CommandLines, leaks
from tests.system.cluster.hosts import Hosts, ssh_hosts, why_unavailable

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
STEPS = 20
SECONDS = "240"  # on a busy machine
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PATH": f"{BIN}:{os.environ['PATH']}",
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
    runs.write_config(path / "config.yaml", config)
    (path / "hostfile").write_text("h1 slots=1\nh2 slots=1\n")
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[int, float]:
    """The losses of the same config trained by two processes on this host."""
    result = runs.maskwright("train", folder / "config.yaml", "--procs", "2")
    assert result.returncode == 0, result.stdout + result.stderr
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


@pytest.mark.slow
@pytest.mark.short
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
    assert len(seen.knowing) >= 2, "each rank has the secrets in its environment"
    (run / "log").write_text(log)
    assert not seen.leaked
    assert not leaks(folder / "ssh")
    assert not ranks(hosts)


@contextlib.contextmanager
def changed(hosts: Hosts, begin: str, end: str, host: str = "h2") -> Iterator[None]:
    """Change something on one host during the block."""
    hosts.on(host, "sh", "-c", begin)
    try:
        yield
    finally:
        hosts.on(host, "sh", "-c", end)


def versions_of(package: str) -> Path:
    """The file that says which version of a package is installed."""
    (found,) = (path for path in map(Path, sys.path) if list(path.glob(f"{package}-*.dist-info")))
    return next(found.glob(f"{package}-*.dist-info")) / "METADATA"


@pytest.mark.slow
def test_hosts_that_differ_are_refused_before_anything_starts(hosts: Hosts, folder: Path, tmp_path: Path) -> None:
    keys, metadata = hosts.state / "authorized_keys.h2", versions_of("deepspeed")
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.0.7\n")
    (tmp_path / "broken.py").write_text("")
    module = ROOT / "pretrain/planning/speed.py"
    (tmp_path / "other.py").write_text(module.read_text() + "# another version\n")
    config = (folder / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("seed: 3", "seed: 4"))
    cases = {
        ("ip link set eth2 down", "ip link set eth2 up"): "h2 cannot be reached (ssh: connect to host h2 port 22",
        (f"mv {keys} {keys}.away", f"mv {keys}.away {keys}"): "h2 cannot be reached (root@h2: Permission denied",
        ("mount -t tmpfs tmpfs " + str(folder / "data"), f"umount {folder}/data"): "h2: ",
        bind(tmp_path / "METADATA", metadata): "h2 has deepspeed 0.0.7 and this machine 0.",
        bind(tmp_path / "broken.py", ROOT / "data_prep/common/urls.py"): "h2 cannot run ",
        bind(tmp_path / "other.py", module): "h2 has another version of maskwright than",
        bind(tmp_path / "config.yaml", folder / "config.yaml"): "h2 has another config than this machine",
        (f"mount -t tmpfs tmpfs {tmp_path}", f"umount {tmp_path}"): f"h2 sees another {tmp_path}/run than this machine",
        ("ip route add unreachable 10.78.0.11", "ip route del unreachable 10.78.0.11"): "h2: it cannot reach rank 0 at",
    }
    for (begin, end), sentence in cases.items():
        with changed(hosts, begin, end):
            code, log = launch(hosts, folder, tmp_path / "run")
        assert code == 1, log
        assert len([line for line in log.splitlines() if line.startswith("error: ")]) == 1, log
        assert sentence in log
        assert not (tmp_path / "run").exists()
        assert not ranks(hosts)
    code, log = launch(hosts, folder, tmp_path / "run", "--check")
    assert code == 0, log
    assert not (tmp_path / "run").exists()


def bind(other: Path, usual: Path) -> tuple[str, str]:
    """The commands that replace the content of a file on a host, and the commands that undo it."""
    return f"mount --bind {other} {usual}", f"umount {usual}"


def test_a_short_hostfile_is_refused(hosts: Hosts, folder: Path, tmp_path: Path) -> None:
    """DeepSpeed's launcher would train on the hosts there are, without a word."""
    (tmp_path / "hostfile").write_text("h1 slots=1\n")
    code, log = launch(hosts, folder, tmp_path / "run", "--hostfile", str(tmp_path / "hostfile"))
    assert code == 1
    assert log.strip() == f"error: {tmp_path}/hostfile has 1 hosts (h1), and --nodes is 2; add hosts, or lower --nodes"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_deepspeed_started_by_hand_on_each_host(hosts: Hosts, folder: Path, reference: dict[int, float]) -> None:
    run = folder / "by_hand"
    words = f"cd {ROOT} && PATH={BIN}:$PATH deepspeed --hostfile {folder}/hostfile --num_nodes 2 --num_gpus 1"
    words += " --no_ssh --node_rank {} --master_addr 10.78.0.11 --master_port 29511"
    words += f" --no_local_rank --module pretrain.train --config {folder}/config.yaml run.dir={run}"
    second = hosts.start("timeout", SECONDS, "ssh", "h2", words.format(1), cwd=ROOT)
    code, log = hosts.run("timeout", SECONDS, "ssh", "h1", words.format(0), cwd=ROOT)
    assert code == 0, log
    assert second.wait() == 0
    assert losses(run) == reference


@pytest.mark.slow
def test_a_killed_launcher_takes_the_ranks_along(hosts: Hosts, folder: Path, tmp_path: Path) -> None:
    """They write a checkpoint first, and the same command resumes from it."""
    run = tmp_path / "run"
    command = launch_command(folder, run, "train.steps=100000", "checkpoint.every_steps=100000")
    process = hosts.start(*command[3:], cwd=ROOT, **ENVIRONMENT)
    wait_for(lambda: (run / "journal.jsonl").exists() and len(losses(run)) > 2, 120)
    kill(hosts, "cli launch hosts")
    process.communicate()
    wait_for(lambda: not ranks(hosts), 60)
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("stopped", "received SIGTERM")
    code, log = launch(hosts, folder, run, f"train.steps={status['step'] + 2}")
    assert code == 0, log
    assert len((run / "journal.jsonl").read_text().splitlines()) < 2 * status["step"], "it resumed, not from step 1"


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_on_every_host(hosts: Hosts, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = hosts.start(*launch_command(folder, run, "train.steps=100000"), cwd=ROOT, **ENVIRONMENT)
    wait_for(lambda: (run / "journal.jsonl").exists() and len(losses(run)) > 2, 120)
    kill(hosts, "-m pretrain.train")
    log, _ = process.communicate(timeout=120)
    assert process.returncode == 1, log
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    assert not ranks(hosts)


def kill(hosts: Hosts, part: str) -> None:
    """SIGKILL a process of the hosts or of desk whose command line has that part: of several, the youngest."""
    _, found = hosts.run("pgrep", "--newest", "--full", "--", part, cwd=ROOT)
    hosts.run("kill", "-KILL", found.strip(), cwd=ROOT)
