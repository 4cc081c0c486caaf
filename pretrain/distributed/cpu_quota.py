"""CPU limits of this process, from the files of its Linux control groups (version 1 or 2)."""

from collections.abc import Sequence
from pathlib import Path

_QUOTA = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # version 1; version 2 has both in cpu.max


def limits_of(name: str) -> list[str]:
    """The contents of the files of this name."""
    try:
        table = Path("/proc/self/cgroup").read_text()
    except OSError:
        return []
    return [text for folder in control_groups(table) if (text := _read(folder / name)) is not None]


def control_groups(table: str) -> list[Path]:
    """The folders of this process's control groups and of those around them, from /proc/self/cgroup; both versions."""
    found = []
    for line in table.splitlines():
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup", *([controllers] if controllers else []))
        inner = root / path.lstrip("/")
        found += [inner, *(folder for folder in inner.parents if folder.is_relative_to(root))]
    return found


def cpu_quota() -> float | None:
    """The number of cores whose time this process may use; None without a limit."""
    return least_quota(limits_of("cpu.max") + [" ".join(pair) for pair in zip(*map(limits_of, _QUOTA), strict=False)])


def least_quota(limits: Sequence[str]) -> float | None:
    """The least number of cores that control groups grant: of `QUOTA PERIOD` in microseconds, or `max PERIOD`."""
    pairs = [limit.split() for limit in limits]
    return min((int(quota) / int(period) for quota, period in pairs if quota.isdecimal()), default=None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
