"""Checks of file systems: free space, atomic writes, locks and speed of the folders that a run uses."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from launchers.doctor.finding import Check
from pretrain.planning import GIB, Finding, judge
from pretrain.planning.node_checks import check_room, check_writes

SPEED_BYTES = 64 << 20
SPEED_SECONDS = 2.0
_CHUNK = 4 << 20
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
_NETWORK |= {"ocfs2", "orangefs", "panfs", "smb3", "smbfs", "virtiofs", "wekafs"}
_NETWORK_FUSE = ("sshfs", "s3fs", "goofys", "gcsfuse", "glusterfs", "juicefs", "ceph", "lustre", "mount-s3")
_SLOW = 50e6  # bytes per second


class Mount(NamedTuple):
    """Mounted file system: mount point and type."""

    point: str
    kind: str

    @property
    def is_network(self) -> bool:
        """Whether other machines can mount it."""
        return self.kind in _NETWORK or (
            self.kind.startswith("fuse.") and any(word in self.kind for word in _NETWORK_FUSE)
        )

    @property
    def is_memory(self) -> bool:
        """Whether its files are lost at a reboot."""
        return self.kind in ("tmpfs", "ramfs")


def write_checks(place: str, path: Path) -> list[Check]:
    """The checks of a folder that a run writes to, or of its nearest existing parent."""
    return [
        Check("storage", f"{place}: room", lambda: _room(place, path)),
        Check("storage", f"{place}: writes", lambda: _writes(place, path), seconds=30),
    ]


def read_checks(place: str, folder: Path) -> list[Check]:
    """The check of the read speed of a data set's shards."""
    return [Check("storage", f"{place}: reads", lambda: _reads(place, folder), seconds=30)]


def judge_lock(place: str, is_exclusive: bool) -> Finding:
    """Judge advisory locks, which prevent two runs in one folder."""
    advice = "nothing prevents two runs in one run folder here: never start two (Lustre: mount it with -o flock)"
    value = "another process sees it" if is_exclusive else "another process can take a lock that is held"
    return judge(f"{place}: lock", value, (not is_exclusive, "warn", advice))


def judge_speed(name: str, what: str, rate: float, advice: str) -> Finding:
    """Compare bytes per second with the lowest speed that does not delay a run."""
    return judge(name, f"{what} {rate / 1e6:,.0f} MB/s", (rate < _SLOW, "warn", advice))


def existing(path: Path) -> Path:
    """The folder itself, or its nearest existing parent."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def mount_of(path: Path) -> Mount:
    """The mounted file system of a path."""
    place = existing(path).resolve()
    mounts = [Mount(one.mountpoint, one.fstype) for one in reversed(psutil.disk_partitions(all=True))]
    return max(
        (mount for mount in mounts if place.is_relative_to(mount.point)),
        key=lambda mount: len(mount.point),
        default=Mount("/", "unknown"),
    )


def _room(place: str, path: Path) -> Iterator[Finding]:
    name, folder = f"{place}: room", existing(path)
    mount = mount_of(folder)
    advice = "a checkpoint has 12 to 16 bytes a parameter, and several are kept: make room"
    finding = check_room(name, folder, least=GIB, wanted=20 * GIB, advice=advice)
    value = f"{finding.value} ({mount.kind}{', network' if mount.is_network else ''})"
    in_memory = mount.is_memory and finding.status != "fail"
    yield judge(
        name,
        value,
        (in_memory, "warn", "it is in memory, and gone after a reboot: choose a folder on a disk"),
        (finding.status != "ok", finding.status, finding.advice),
    )


def _writes(place: str, path: Path) -> Iterator[Finding]:
    with _scratch(path) as folder:
        finding = check_writes(f"{place}: writes", folder)
        yield finding
        if finding.status == "fail":
            return
        yield judge_lock(place, _is_exclusive(folder / "lock"))
        advice = "checkpoints take long to write: use a faster disk, or set checkpoint.every_steps higher"
        try:
            rate = _write_rate(folder / "speed")
        except OSError as error:
            yield Finding(f"{place}: speed", "fail", f"{existing(path)}: {error.strerror}", "make room")
            return
        yield judge_speed(f"{place}: speed", "written at", rate, advice)


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A temporary folder at a path, or the nearest existing folder if it cannot be created."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".maskwright-doctor-", dir=existing(path)))
    except OSError:  # check_writes reports the reason
        yield existing(path)
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_exclusive(path: Path, lock: Callable[..., None] = fcntl.flock) -> bool:
    """Whether a lock of this process excludes another process."""
    with open(path, "w") as held:
        lock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child = os.fork()
        if child == 0:  # on NFS locks belong to processes, so that this one could take its own again
            with contextlib.suppress(OSError), open(path) as file:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _write_rate(path: Path) -> float:
    """Measure bytes per second that reach the disk, with SPEED_BYTES or SPEED_SECONDS of writing."""
    chunk = os.urandom(_CHUNK)  # some file systems do not write zeros
    done, begin = 0, time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        while done < SPEED_BYTES and time.perf_counter() - begin < SPEED_SECONDS:
            done += file.write(chunk)
            os.fsync(file.fileno())
    return done / (time.perf_counter() - begin)


def _reads(place: str, folder: Path) -> Iterator[Finding]:
    name, kind = f"{place}: reads", mount_of(folder).kind
    shards = sorted((folder / "shards").glob("*.tar"), key=lambda shard: shard.stat().st_size)
    if not shards or shards[-1].stat().st_size < _CHUNK:
        yield Finding(name, "skipped", f"{folder} ({kind}) has no shard that is large enough to measure")
        return
    advice = "copy the data set to a disk of each node; training reads 2 to 4 bytes a token"
    yield judge_speed(name, f"read from {kind} at", _read_rate(shards[-1]), advice)


def _read_rate(path: Path) -> float:
    """Measure bytes per second, without the page cache if possible, with the same limits as for writing."""
    buffer, done = bytearray(_CHUNK), 0
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        while done < SPEED_BYTES and time.perf_counter() - begin < SPEED_SECONDS and (count := file.readinto(buffer)):
            done += count
        return done / max(time.perf_counter() - begin, 1e-9)
