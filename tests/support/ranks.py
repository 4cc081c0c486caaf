"""Run a module on several gloo ranks of this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(module: str, world_size: int, *arguments: str, timeout: float = 300) -> None:
    """`python -m module arguments...` as `world_size` ranks; fails if one of them does, or leaves shared memory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(world_size):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", module, *arguments]
        processes.append(
            subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0] * world_size, f"exit codes {codes}\n" + "\n".join(outputs)
    left = [path.name for path in Path("/dev/shm").glob(f"deepspeed_*_{port}_*")]
    assert not left, f"left in shared memory: {left}"
