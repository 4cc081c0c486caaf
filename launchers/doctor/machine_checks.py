"""Checks of this machine: cores, memory, limits, and the network to other machines."""

import ipaddress
import os
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence

import psutil

from launchers.doctor.finding import Check
from launchers.local import gpu_count
from pretrain.distributed import threads_of, usable_cores
from pretrain.distributed.cpu_quota import limits_of
from pretrain.distributed.network_interfaces import addresses
from pretrain.distributed.threads import Cores, Threads
from pretrain.planning import GIB, Finding, check_memory, judge

_SHM_WANTED, _SHM_LEAST = 1 << 30, 128 << 20  # NCCL needs up to some hundred MB
_FILES_WANTED = 4096  # shards, sockets and workers of a rank
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_OUTSIDE = "203.0.113.1"  # a documentation address (RFC 5737); nothing is sent to it


def checks() -> list[Check]:
    """The machine as visible to this process: in a job or a container, its share."""
    looks = {"cores": _cores, "memory": _memory, "shm": _shm, "open files": _files}
    looks |= {"host name": _host_name, "interface": _interface}
    return [Check("machine", name, look) for name, look in looks.items()]


def judge_cores(cores: Cores, present: int, threads: Threads, processes: int = 1) -> Finding:
    """Judge the usable cores, and the threads of each process of a run."""
    number = f"{processes} process{'es' if processes > 1 else ''}"
    advice = f"threads will wait for each other: unset OMP_NUM_THREADS or set it to {cores.number} or less"
    one_core = "training, reading ahead and tracking share one core: on Slurm, ask for --cpus-per-process 4"
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


def judge_files(soft: int, hard: int) -> Finding:
    """Judge the limits of open files; -1 means no limit."""
    value = "no limit" if soft < 0 else f"{soft:,} at most"
    advice = f"raise it before a run: ulimit -n {65536 if hard < 0 else min(hard, 65536)}"
    return judge("open files", value, (0 <= soft < _FILES_WANTED, "warn", advice))


def judge_host_name(name: str, known: Sequence[str]) -> Finding:
    """Judge this host's name and its addresses."""
    loopback = all(ipaddress.ip_address(address).is_loopback for address in known)
    return judge(
        "host name",
        f"{name} is {', '.join(known)}" if known else f"{name} has no address",
        (not known, "warn", "several nodes cannot find each other by name: add it to DNS or /etc/hosts"),
        (loopback, "warn", "ranks on other nodes would call themselves: give it the network's address in /etc/hosts"),
    )


def judge_interface(chosen: str | None, present: Sequence[str], variables: Mapping[str, str]) -> Finding:
    """Judge the interface of the route to other machines, and the interfaces named in the environment."""
    named = {variable: variables[variable] for variable in _INTERFACE_VARIABLES if variables.get(variable)}
    for variable, value in named.items():
        if not any(_matches(pattern, present) for pattern in value.split(",")):
            advice = f"unset {variable}, or name one of {', '.join(present)}"
            return Finding("interface", "fail", f"{variable}={value}, but there is no such interface", advice)
    settings = [f"{variable}={value}" for variable, value in named.items()]
    alone = chosen is None
    return judge(
        "interface",
        "no route to other machines" if chosen is None else ", ".join([chosen, *settings]),
        (alone, "warn", "this machine can only train by itself"),
    )


def _matches(pattern: str, present: Sequence[str]) -> bool:
    """Match NCCL's patterns: eth (prefix), =eth0 (exact name), ^docker (all except)."""
    if pattern.startswith("^"):
        return True
    if pattern.startswith("="):
        return pattern[1:] in present
    return any(name.startswith(pattern) for name in present)


def _cores() -> Iterator[Finding]:
    processes = max(1, gpu_count())
    yield judge_cores(usable_cores(), os.cpu_count() or 1, threads_of(processes), processes)


def _memory() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    limits = [int(limit) for name in _MEMORY_LIMITS for limit in limits_of(name) if limit.isdecimal()]
    total = min([memory.total, *limits])
    yield check_memory(total, min(memory.available, total))


def _shm() -> Iterator[Finding]:
    if not gpu_count():
        yield Finding("shm", "skipped", "NCCL needs it, and there is no GPU")
        return
    usage = psutil.disk_usage("/dev/shm")
    yield judge_shm(usage.total, usage.free)


def _files() -> Iterator[Finding]:
    yield judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def _host_name() -> Iterator[Finding]:
    name = socket.gethostname()
    try:
        known = sorted({str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(name, None)})
    except socket.gaierror:
        known = []
    yield judge_host_name(name, known)


def _interface() -> Iterator[Finding]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_OUTSIDE, 9))
            address = str(probe.getsockname()[0])
        except OSError:
            address = None
    chosen = f"{addresses().get(address)} ({address})" if address else None
    yield judge_interface(chosen, sorted(psutil.net_if_addrs()), os.environ)
