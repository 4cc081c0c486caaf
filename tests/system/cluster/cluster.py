"""Start and stop the Slurm cluster of cluster.sh, and run commands on its login node."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

NAMESPACES = ["--pid", "--mount", "--net", "--uts", "--ipc"]
FINAL_STATES = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}


def skip_without(programs: list[str], packages: str) -> None:
    """Skip where these programs cannot run in namespaces. MASKWRIGHT_REQUIRE_SLURM=1 (set in CI) forbids that."""
    if reason := _why_unavailable([*programs, "ip", "unshare", "nsenter", "setpriv"], packages):
        if os.environ.get("MASKWRIGHT_REQUIRE_SLURM") == "1":
            pytest.fail(f"{reason}, and MASKWRIGHT_REQUIRE_SLURM=1 says that it must run")
        pytest.skip(reason)


def _why_unavailable(programs: list[str], packages: str) -> str | None:
    if os.geteuid() != 0:
        return "this test needs root"
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        return f"this test needs {', '.join(missing)} (Debian packages {packages})"
    probe = ["unshare", *NAMESPACES, "--fork", "ip", "link", "add", "br0", "type", "bridge"]
    result = subprocess.run(probe, capture_output=True, text=True)
    return f"this test needs namespaces and bridges ({result.stderr.strip()})" if result.returncode else None


def enter(holder_pid: int) -> list[str]:
    """The words before a command that runs in the namespaces of a process."""
    # `unshare` itself is in all of the new namespaces but the PID one, which only its child is in.
    words = ["nsenter", f"--target={holder_pid}", "--mount", "--net", "--uts", "--ipc"]
    return [*words, f"--pid=/proc/{holder_pid}/ns/pid_for_children"]


class Cluster:
    """A running cluster. `state` holds its configuration and logs."""

    def __init__(self, state: Path, holder_pid: int) -> None:
        self.state = state
        self._enter = enter(holder_pid)

    def run(self, *command: str | Path, cwd: Path | None = None, check: bool = True, **environment: str) -> str:
        """Run a command on the login node and return its standard output."""
        result = subprocess.run(
            [*self._enter, f"--wd={cwd or Path.cwd()}", *map(str, command)],
            env=os.environ | environment | {"SLURM_CONF": str(self.state / "slurm.conf")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if check and result.returncode != 0:
            raise AssertionError(f"{command[0]} exited with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result.stdout

    def start_node(self, node: str) -> None:
        """Start a node again that has no processes, and wait until Slurm accepts it."""
        script = Path(__file__).with_name("node.sh")
        self.run("sh", "-c", f"setsid {script} {node} >{self.state}/{node}.again.log 2>&1 &")
        deadline = time.monotonic() + 60
        while self.run("sinfo", "--noheader", "--partition=main", f"--nodes={node}", "--format=%T").strip() != "idle":
            assert time.monotonic() < deadline, f"{node} does not come back"
            time.sleep(0.3)

    def configure(self, name: str, value: object) -> None:
        """Change a value of slurm.conf in the running cluster."""
        path = self.state / "slurm.conf"
        text, count = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", path.read_text())
        assert count == 1, f"slurm.conf has no line {name}="
        path.write_text(text)
        self.run("scontrol", "reconfigure")

    def job(self, job_id: str) -> dict[str, str]:
        """The fields that scontrol shows of a job."""
        return dict(
            re.findall(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)", self.run("scontrol", "--oneliner", "show", "job", job_id))
        )

    def wait(self, job_id: str, seconds: float) -> str:
        """Wait until a job is finished and return its state; cancel it and fail if that takes too long."""
        deadline = time.monotonic() + seconds
        while (state := self.job(job_id)["JobState"]) not in FINAL_STATES:
            if time.monotonic() > deadline:
                self.run("scancel", job_id)
                raise AssertionError(f"job {job_id} is still {state} after {seconds} s")
            time.sleep(0.3)
        return state


@contextlib.contextmanager
def slurm_cluster(state: Path) -> Iterator[Cluster]:
    """A cluster of three nodes that claim four cores and two GPUs each."""
    with namespaces("cluster.sh", state, 3, 4, 2) as holder_pid:
        yield Cluster(state, holder_pid)


@contextlib.contextmanager
def namespaces(script: str, state: Path, *arguments: int) -> Iterator[int]:
    """Run a script of this folder as process 1 of new namespaces until it makes STATE/ready; the process that holds
    the namespaces. All goes at the end, and also when this process is killed.
    """
    state.mkdir(parents=True, exist_ok=True)
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
    command += [str(Path(__file__).with_name(script)), str(state), *map(str, arguments)]
    with open(state / "cluster.log", "wb") as log:
        holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while not (state / "ready").exists():
            if holder.poll() is not None:
                raise RuntimeError(f"{script} did not start:\n{(state / 'cluster.log').read_text()}")
            time.sleep(0.1)
        yield holder.pid
    finally:
        _end(holder)


def _end(holder: subprocess.Popen[bytes]) -> None:
    """Kill process 1 of the namespaces: the kernel kills all others, and only then can `unshare` end."""
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    for child in children.read_text().split() if children.exists() else []:
        os.kill(int(child), signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        holder.wait(timeout=30)
    holder.kill()  # had it not started process 1 yet
    holder.wait()
