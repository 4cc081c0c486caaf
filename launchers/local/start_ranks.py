"""Start the training processes of one machine.

`python -m launchers.local.start_ranks PORT DEVICES CONFIG [section.key=value ...]`. PORT is of rank 0. DEVICES are
GPUs, one for each process, separated by commas; on CPU any numbers.

It does the work of `deepspeed.launcher.launch`, but does not import DeepSpeed, which takes seconds. When one
process fails, the others are ended. When this process is killed, Linux kills them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from data_prep.common.processes import die_with_parent, module_command
from launchers.local.gpus import gpu_count

ADDRESS = "127.0.0.1"  # of rank 0
_SAVE_SECONDS = 30.0  # for a checkpoint after processes were asked to end
_POLL_SECONDS = 0.05


def main(words: Sequence[str]) -> int:
    """Start the processes and wait for them. Returns 0, or the first exit code that is not 0."""
    port, devices, *arguments = words
    ended: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        ended.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    processes = len(devices.split(","))
    settings = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": devices}
    settings |= {} if gpu_count() else {"DS_ACCELERATOR": "cpu"}
    ranks = []
    for local_rank in range(processes):
        variables = rank_variables(local_rank, processes, 0, 1, ADDRESS, port)
        ranks.append(_start(variables | settings, arguments))
    while not ended and not any(rank.poll() for rank in ranks) and any(rank.poll() is None for rank in ranks):
        time.sleep(_POLL_SECONDS)
    code = next((rank.returncode for rank in ranks if rank.returncode), 1 if ended else 0)
    if code:
        _end(ranks)
    return code


def rank_variables(
    local_rank: int, processes: int, node: int, nodes: int, address: str, port: int | str
) -> dict[str, str]:
    """The environment variables of a rank for DeepSpeed and PyTorch, with `nodes` nodes of `processes` each."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "RANK": str(node * processes + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(nodes * processes),
        "LOCAL_SIZE": str(processes),
        "CROSS_RANK": str(node),
        "CROSS_SIZE": str(nodes),
    }


def _start(environment: dict[str, str], arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    local_rank = environment["LOCAL_RANK"]
    return subprocess.Popen(
        module_command("pretrain.train", f"--local_rank={local_rank}", "--config", *arguments),
        env=os.environ | environment,
        preexec_fn=die_with_parent,
        close_fds=False,  # they inherit the lock of the run folder
    )


def _end(ranks: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask the processes to save and exit. Kill those that do not exit in time."""
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    deadline = time.monotonic() + _SAVE_SECONDS
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
