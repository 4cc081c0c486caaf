"""Start and stop the hosts of hosts.sh, which reach each other only by ssh, and run commands there."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.system.cluster.cluster import NAMESPACES, namespaces

PROGRAMS = ["sshd", "ssh", "ssh-keygen", "pdsh", "ip", "unshare", "nsenter", "setpriv"]


def why_unavailable() -> str | None:
    """The reason why there can be no test hosts on this machine, or None."""
    if os.geteuid() != 0:
        return "test hosts need root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"test hosts need {', '.join(missing)} (openssh-server openssh-client pdsh iproute2)"
    probe = ["unshare", *NAMESPACES, "--fork", "ip", "link", "add", "br0", "type", "bridge"]
    result = subprocess.run(probe, capture_output=True, text=True)
    if result.returncode != 0:
        return f"test hosts need namespaces and bridges ({result.stderr.strip()})"
    return None


class Hosts:
    """Running hosts h1, h2, ... and the machine `desk`, which reaches them by ssh."""

    def __init__(self, state: Path, holder_pid: int) -> None:
        self.state = state
        self._desk = ["nsenter", f"--target={holder_pid}", "--mount", "--net", "--uts", "--ipc"]
        self._desk.append(f"--pid=/proc/{holder_pid}/ns/pid_for_children")

    def start(self, *command: str | Path, cwd: Path, **environment: str) -> "subprocess.Popen[str]":
        """Start a command on desk; its output is one pipe."""
        return subprocess.Popen(
            [*self._desk, f"--wd={cwd}", *map(str, command)],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@contextlib.contextmanager
def ssh_hosts(state: Path, number: int) -> Iterator[Hosts]:
    """`number` hosts, removed with all their processes at the end."""
    with namespaces("hosts.sh", state, number) as holder_pid:
        yield Hosts(state, holder_pid)
