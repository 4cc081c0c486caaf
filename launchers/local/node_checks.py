"""Checks of one node: its memory, its folders and its GPUs. The doctor and a Slurm job's start both use them.

A check returns a finding: its name, status, measured value and advice. A node that fails a check cannot train.
"""

import os
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from data_prep.common.errors import one_line
from data_prep.common.files import write_file
from data_prep.common.processes import ask_program

FindingStatus = Literal["ok", "warn", "fail", "skipped"]

GIB = 1 << 30
_LEAST_MEMORY = 0.02
_SLOW_COMMIT = 0.2  # seconds


@dataclass(frozen=True)
class Finding:
    """The result of one check. advice: what to do about a problem. group: the section of the report."""

    name: str
    status: FindingStatus
    value: str
    advice: str = ""
    group: str = ""


def judge(name: str, value: str, *rules: tuple[bool, FindingStatus, str]) -> Finding:
    """The finding with the status and the advice of the first rule that holds; "ok" if none does."""
    for holds, status, advice in rules:
        if holds:
            return Finding(name, status, value, advice)
    return Finding(name, "ok", value)


def check_memory(total: int, available: int) -> Finding:
    """Check the available memory of this process. Both values are in bytes."""
    value = f"{available / GIB:.1f} GiB of {total / GIB:.1f} GiB of memory are available"
    advice = "a training process takes 1 GiB before its model: end other programs, or raise the job's --mem"
    return judge(
        "memory", value, (available < _LEAST_MEMORY * total, "fail", advice), (available < 2 * GIB, "warn", advice)
    )


def check_room(name: str, folder: Path, least: int, wanted: int = 0, advice: str = "make room") -> Finding:
    """Check the free space of a folder's file system: under `least` bytes it fails, under `wanted` it warns."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(name, "fail", f"{folder} cannot be read ({error.strerror})", "choose another folder")
    value = f"{free / GIB:,.2f} GiB free in {folder}"
    return judge(name, value, (free < least, "fail", advice), (free < wanted, "warn", advice))


def check_writes(name: str, folder: Path) -> Finding:
    """Commit a small file to a folder in the way of a checkpoint, and remove it."""
    path = folder / f".check-{socket.gethostname()}-{os.getpid()}"
    begin = time.perf_counter()
    try:
        write_file(path, b"check")
        seconds = time.perf_counter() - begin
        path.unlink()
    except OSError as error:
        advice = "make room, or choose a folder that you may write to, on every node"
        return Finding(name, "fail", f"cannot write to {folder} ({error.strerror})", advice)
    advice = "each checkpoint waits for several commits: choose a faster file system"
    value = f"a small file is committed in {1000 * seconds:.1f} ms"
    return judge(name, value, (seconds > _SLOW_COMMIT, "warn", advice))


def check_gpu_count(needed: int, seconds: float) -> Finding:
    """Check that nvidia-smi lists enough GPUs. Skipped if no GPU is needed or nvidia-smi is not installed."""
    if not needed:
        return Finding("gpus", "skipped", "no GPU is needed")
    answer = ask_program("nvidia-smi", "--query-gpu=index", "--format=csv,noheader", seconds=seconds)
    if answer is None:  # no NVIDIA GPU: the ranks report a missing device
        return Finding("gpus", "skipped", "nvidia-smi is not installed")
    count = len([line for line in answer.text.splitlines() if line.strip().isdigit()])
    value = f"{count} of {needed} GPUs in nvidia-smi" if answer.works or count else one_line(answer.text, 200)
    wrong = not answer.works or count < needed
    return judge("gpus", value, (wrong, "fail", "ask the administrator to check the node"))


def check_node(run_folder: Path, gpus: int, seconds: float) -> list[Finding]:
    """Make all checks of a node before a run starts there.

    Args:
        gpus: number of GPUs that the run needs on this node.
        seconds: time limit of nvidia-smi.
    """
    memory = psutil.virtual_memory()
    return [
        check_gpu_count(gpus, seconds),
        check_writes("run folder", run_folder),
        check_memory(memory.total, memory.available),
        check_room("/tmp", Path("/tmp"), least=100 << 20),
    ]
