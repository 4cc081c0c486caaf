"""Checks of this machine: cores, memory and shared memory."""

import os
from collections.abc import Iterator

import psutil

from launchers.local import GIB, Finding, check_memory, gpu_count, judge
from pretrain.distributed import Cores, Threads, limits_of

_SHM_WANTED, _SHM_LEAST = 1 << 30, 128 << 20  # NCCL needs up to some hundred MB
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")


def judge_cores(cores: Cores, present: int, threads: Threads, processes: int = 1) -> Finding:
    """Judge the usable cores, and the threads of each process of a run."""
    number = f"{processes} process{'es' if processes > 1 else ''}"
    advice = f"threads will wait for each other: unset OMP_NUM_THREADS or set it to {cores.number} or less"
    one_core = "training, reading ahead and tracking share one core: on Slurm, set cluster.cpus_per_process=4"
    return judge(
        "cores",
        f"{cores.number} of {present} usable; a run with {number} has {threads}",
        (threads.number > cores.number, "warn", advice),
        (cores.number == 1 and present > 1, "warn", one_core),
    )


def judge_shm(total: int, free: int) -> Finding:
    """Judge the size of /dev/shm in bytes. NCCL uses it to exchange gradients between the GPUs of a machine."""
    value = f"{free / GIB:.2f} GiB free of {total / GIB:.2f} in /dev/shm"
    advice = "NCCL exchanges gradients there: start the container with --shm-size=8g (or --ipc=host), or clear it"
    return judge("shm", value, (free < _SHM_LEAST, "fail", advice), (free < _SHM_WANTED, "warn", advice))


def check_cores() -> Iterator[Finding]:
    """Check the cores of this process: in a job or a container, its share."""
    processes = max(1, gpu_count())
    yield judge_cores(Cores.usable(), os.cpu_count() or 1, Threads.of(processes), processes)


def check_own_memory() -> Iterator[Finding]:
    """Check the memory of this process: in a job or a container, its share."""
    memory = psutil.virtual_memory()
    limits = [int(limit) for name in _MEMORY_LIMITS for limit in limits_of(name) if limit.isdecimal()]
    total = min([memory.total, *limits])
    yield check_memory(total, min(memory.available, total))


def check_shm() -> Iterator[Finding]:
    """Check the shared memory, if there is a GPU."""
    if not gpu_count():
        yield Finding("shm", "skipped", "NCCL needs it, and there is no GPU")
        return
    usage = psutil.disk_usage("/dev/shm")
    yield judge_shm(usage.total, usage.free)
