"""Entry point on a host: `python -m launchers.hosts.host_entry` runs its processes while the ssh connection lasts.

The request is a line of JSON on standard input, so that secrets never appear in a file or on a command line. The end of
standard input means that the launching command has exited.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO

from data_prep.common.processes import die_with_parent, leave
from data_prep.common.reading import parse_json

_END_SECONDS = 40.0
"""DeepSpeed's launcher gives its processes 30 s to write a checkpoint and stop."""


@dataclass(frozen=True)
class HostRequest:
    """Command to start on this host. environment: variables of the launching machine, added to the host's own."""

    command: list[str]
    environment: dict[str, str]


def start(request: HostRequest) -> "subprocess.Popen[bytes]":
    """Start the launcher of this host's processes."""
    return subprocess.Popen(
        request.command,
        env=os.environ | request.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )


def end_with_input(child: "subprocess.Popen[bytes]") -> None:
    """Wait until the launching command has exited, then end the processes."""
    sys.stdin.read()
    child.terminate()
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def pass_on(output: IO[bytes]) -> None:
    """Copy the processes' output. Discard it after the reader has exited, so that they can still write a checkpoint."""
    for line in output:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def main() -> int:
    """The exit code of this host's launcher."""
    for number in (signal.SIGHUP, signal.SIGPIPE):  # a lost connection is seen on standard input
        signal.signal(number, signal.SIG_IGN)
    try:
        request: HostRequest = parse_json(sys.stdin.readline(), HostRequest)
    except ValueError as error:
        print(f"error: the request to this host cannot be used: {error}", file=sys.stderr, flush=True)
        return 1
    child = start(request)
    threading.Thread(target=end_with_input, args=(child,), daemon=True).start()
    assert child.stdout
    pass_on(child.stdout)
    return abs(child.wait())


if __name__ == "__main__":
    leave(main())
