"""Threads per process: their number, from the limits on cores of this host, and how they wait for each other."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.files import text_or_none

_QUOTA = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # of control groups version 1; version 2 has both in cpu.max
_NUMBER = "OMP_NUM_THREADS"
_SPINS = "1000"
"""How often a waiting thread looks before it sleeps: microseconds, and libgomp's own choice for busy cores. By default
it looks 300,000 times. Where another program runs on a core, this takes the time that the others need."""


@dataclass(frozen=True)
class Cores:
    """The number of cores that the processes of this host share, and its source in words."""

    number: int
    source: str

    @classmethod
    def usable(cls, environment: Mapping[str, str] = os.environ) -> "Cores":
        """The cores of this process."""
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        job = environment.get("SLURM_CPUS_ON_NODE", "")
        return cls.least_of(affinity, cpu_quota(), int(job) if job.isdecimal() else None)

    @classmethod
    def least_of(cls, affinity: int, quota: float | None, job: int | None) -> "Cores":
        """The smallest of the limits on cores.

        Args:
            affinity: cores that Linux allows this process to use.
            quota: cores' time that the control groups grant, None without a limit.
            job: cores of this host in the Slurm job, None outside of one.
        """
        granted = [(affinity, f"{affinity} core{'s' if affinity > 1 else ''}")]
        if quota is not None:
            granted.append((int(quota), f"a CPU quota of {quota:g}"))
        if job is not None:
            granted.append((job, f"{job} of Slurm's cores"))
        number, source = min(granted, key=lambda limit: limit[0])
        return cls(max(1, number), source)


@dataclass(frozen=True)
class Threads:
    """The number of threads of each process, and its source in words."""

    number: int
    source: str

    @classmethod
    def of(cls, processes: int, environment: Mapping[str, str] = os.environ, cores: Cores | None = None) -> "Threads":
        """An equal share of the cores for each of so many processes of this host; or OMP_NUM_THREADS, if a number.

        Args:
            cores: by default the usable cores.
        """
        first = environment.get(_NUMBER, "").partition(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            return cls(int(first), _NUMBER)
        cores = cores or Cores.usable(environment)
        return cls(max(1, cores.number // processes), cores.source)

    def settings(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment variables for each process. OpenMP reads them when torch is imported."""
        number = {} if self.source == _NUMBER else {_NUMBER: str(self.number)}
        return number | self.wait_settings(environment)

    @staticmethod
    def wait_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Environment variables that keep waiting threads from taking the time of others; none if the user set one."""
        if "OMP_WAIT_POLICY" in environment or "GOMP_SPINCOUNT" in environment:
            return {}
        return {"GOMP_SPINCOUNT": _SPINS}

    def __str__(self) -> str:
        return f"{self.number} thread{'s' if self.number > 1 else ''} per process ({self.source})"


def local_processes(environment: Mapping[str, str]) -> int:
    """The number of processes of the run on this host; 1 if no launcher sets it."""
    names = ("LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE")  # the last one is torchrun's
    number = next((environment[name] for name in names if environment.get(name)), "")
    return int(number) if number.isdecimal() and int(number) > 0 else 1


def limits_of(name: str) -> list[str]:
    """The contents of the files of this name in the Linux control groups of this process (version 1 or 2)."""
    table = text_or_none(Path("/proc/self/cgroup")) or ""
    return [text for folder in control_groups(table) if (text := text_or_none(folder / name)) is not None]


def control_groups(table: str) -> list[Path]:
    """The folders of this process's control groups and of those around them, from /proc/self/cgroup; both versions."""
    folders = []
    for line in table.splitlines():
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup", *([controllers] if controllers else []))
        inner = root / path.lstrip("/")
        folders += [inner, *(folder for folder in inner.parents if folder.is_relative_to(root))]
    return folders


def cpu_quota() -> float | None:
    """The number of cores whose time this process may use; None without a limit."""
    return least_quota(limits_of("cpu.max") + [" ".join(pair) for pair in zip(*map(limits_of, _QUOTA), strict=False)])


def least_quota(limits: Sequence[str]) -> float | None:
    """The least number of cores that control groups grant: of `QUOTA PERIOD` in microseconds, or `max PERIOD`."""
    pairs = [limit.split() for limit in limits]
    return min((int(quota) / int(period) for quota, period in pairs if quota.isdecimal()), default=None)
