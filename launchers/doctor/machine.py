"""Cores, memory, limits and clock of this machine."""

import os
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from launchers.doctor.commands import ask
from launchers.doctor.finding import Check, Finding
from launchers.local import gpu_count
from pretrain.control_groups import limits_of
from pretrain.threads import Cores, Threads, threads_of, usable_cores

GIB = 1 << 30
SHM_WANTED = 1 << 30  # NCCL takes up to some hundred MB
SHM_LEAST = 128 << 20
FILES_WANTED = 4096  # shards, sockets and workers of a rank
_INFINIBAND = Path("/sys/class/infiniband")
_MOST_MEMORY = ("memory.max", "memory.limit_in_bytes")
_BUILT = 1735689600.0  # 2025-01-01: a clock before it has never been set


def checks() -> list[Check]:
    """The machine as this process sees it: inside a job or a container, its share."""
    looks = {"cores": _cores, "governor": _governor, "memory": _memory, "shm": _shm, "limits": _limits, "clock": _clock}
    return [Check("machine", name, look) for name, look in looks.items()]


def judge_cores(cores: Cores, present: int, threads: Threads, processes: int = 1) -> Finding:
    """Cores granted of those present, and the threads of each process of a run here."""
    number = f"{processes} process{'es' if processes > 1 else ''}"
    value = f"{cores.number} of {present} usable; a run with {number} has {threads}"
    if threads.number > cores.number:
        advice = f"threads will wait for each other: unset OMP_NUM_THREADS or set it to {cores.number} or less"
        return Finding("cores", "warn", value, advice)
    if cores.number == 1 and present > 1:
        advice = "training, reading ahead and tracking share one core: on Slurm, ask for --cpus-per-process 4"
        return Finding("cores", "warn", value, advice)
    return Finding("cores", "ok", value)


def judge_governor(governor: str | None, driver: str | None) -> Finding:
    """The CPU's frequency governor; that called powersave is a fixed low clock with the older drivers alone."""
    if governor is None:
        return Finding("governor", "skipped", "the system does not tell (a virtual machine, most often)")
    value = f"{governor} ({driver or 'driver unknown'})"
    if governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp"):
        advice = "the cores keep to their lowest clock: cpupower frequency-set --governor performance"
        return Finding("governor", "warn", value, advice)
    return Finding("governor", "ok", value)


def judge_memory(total: int, available: int, limit: int | None, swap_total: int, swap_free: int) -> Finding:
    """Bytes of memory, the container's or job's limit on them, and swap in use."""
    most = total if limit is None else min(total, limit)
    value = f"{available / GIB:.1f} GiB available of {total / GIB:.1f}"
    value += f", limited to {limit / GIB:.1f}" if limit is not None and limit < total else ""
    swapped = swap_total - swap_free
    if swapped > 0.05 * total:
        advice = "memory is short: pages of a run that are swapped out cost milliseconds each; end other programs"
        return Finding("memory", "warn", f"{value}, {swapped / GIB:.1f} GiB swapped out", advice)
    if min(available, most) < 2 * GIB:
        advice = "a process that trains takes 1 GiB before its model: end other programs, or raise the job's --mem"
        return Finding("memory", "warn", value, advice)
    return Finding("memory", "ok", value)


def judge_shm(total: int, free: int) -> Finding:
    """Bytes of /dev/shm, through which NCCL exchanges gradients between the GPUs of a machine."""
    value = f"{free / GIB:.2f} GiB free of {total / GIB:.2f} in /dev/shm"
    advice = "NCCL exchanges gradients there: start the container with --shm-size=8g (or --ipc=host), or clear it"
    if free < SHM_LEAST:
        return Finding("shm", "fail", value, advice)
    return Finding("shm", "warn" if free < SHM_WANTED else "ok", value, advice if free < SHM_WANTED else "")


def judge_files(soft: int, hard: int) -> Finding:
    """The limit of open files."""
    value = f"{_limit(soft)} open files, {_limit(hard)} at most"
    if 0 <= soft < FILES_WANTED:
        return Finding(
            "open files", "warn", value, f"raise it before a run: ulimit -n {65536 if hard < 0 else min(hard, 65536)}"
        )
    return Finding("open files", "ok", value)


def judge_locked(soft: int, infiniband: bool) -> Finding:
    """The limit of locked memory in bytes, which RDMA needs."""
    value = f"{_limit(soft)} bytes of locked memory"
    if infiniband and 0 <= soft < GIB:
        advice = "NCCL cannot register memory with the InfiniBand adapter: have `memlock` set to unlimited"
        return Finding("locked memory", "warn", value, advice)
    return Finding("locked memory", "ok", value)


def judge_core_files(soft: int, pattern: str) -> Finding:
    """The limit of core files: where a crash is written out, with all of a rank's memory."""
    if soft != 0 and not pattern.startswith("|"):
        advice = "a rank that crashes writes its whole memory to the working folder: ulimit -c 0 unless you want that"
        return Finding("core files", "warn", f"up to {_limit(soft)} bytes at {pattern}", advice)
    return Finding("core files", "ok", "none" if soft == 0 else f"given to {pattern[1:].split()[0]}")


def judge_clock(now: float, synchronised: bool | None) -> Finding:
    """The clock: set at all, and kept right by the network."""
    value = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _BUILT:
        return Finding("clock", "fail", value, "the clock has never been set: certificates and logs will be wrong")
    if synchronised is False:
        return Finding("clock", "warn", f"{value}, not synchronised", "switch on NTP: timedatectl set-ntp true")
    return Finding("clock", "ok", value)


def _cores() -> Iterator[Finding]:
    processes = max(1, gpu_count())
    yield judge_cores(usable_cores(), os.cpu_count() or 1, threads_of(processes), processes)


def _governor() -> Iterator[Finding]:
    folder = "/sys/devices/system/cpu/cpu0/cpufreq"
    yield judge_governor(_read(f"{folder}/scaling_governor"), _read(f"{folder}/scaling_driver"))


def _memory() -> Iterator[Finding]:
    lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    found = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines}
    limits = [int(limit) for name in _MOST_MEMORY for limit in limits_of(name) if limit.isdecimal()]
    keys = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
    total, available, swap_total, swap_free = (found[key] for key in keys)
    yield judge_memory(total, available, min(limits, default=None), swap_total, swap_free)


def _shm() -> Iterator[Finding]:
    if not gpu_count():
        yield Finding("shm", "skipped", "NCCL needs it, and there is no GPU")
        return
    usage = shutil.disk_usage("/dev/shm")
    yield judge_shm(usage.total, usage.free)


def _limits() -> Iterator[Finding]:
    yield judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    infiniband = _INFINIBAND.is_dir() and any(_INFINIBAND.iterdir())
    yield judge_locked(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], infiniband)
    pattern = _read("/proc/sys/kernel/core_pattern") or "core"
    yield judge_core_files(resource.getrlimit(resource.RLIMIT_CORE)[0], pattern)


def _clock() -> Iterator[Finding]:
    answer = ask("timedatectl", "show", "--property=NTPSynchronized", "--value", seconds=4)
    known = answer.text if answer and answer.works else ""
    yield judge_clock(time.time(), {"yes": True, "no": False}.get(known))


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
