"""Checks of the folders that a run writes to: free space, atomic writes and locks."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from launchers.local import GIB, Finding, check_room, check_writes, judge

_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
_NETWORK |= {"ocfs2", "orangefs", "panfs", "smb3", "smbfs", "virtiofs", "wekafs"}
_NETWORK_FUSE = ("sshfs", "s3fs", "goofys", "gcsfuse", "glusterfs", "juicefs", "ceph", "lustre", "mount-s3")


class Mount(NamedTuple):
    """Mounted file system: mount point and type."""

    point: str
    kind: str

    @property
    def is_network(self) -> bool:
        """Whether other machines can mount it."""
        is_fuse = self.kind.startswith("fuse.") and any(word in self.kind for word in _NETWORK_FUSE)
        return is_fuse or self.kind in _NETWORK


def existing(path: Path) -> Path:
    """The folder itself, or its nearest existing parent."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def mount_of(path: Path) -> Mount:
    """The mounted file system of a path."""
    place = existing(path).resolve()
    mounts = [Mount(disk.mountpoint, disk.fstype) for disk in reversed(psutil.disk_partitions(all=True))]
    return max(
        (mount for mount in mounts if place.is_relative_to(mount.point)),
        key=lambda mount: len(mount.point),
        default=Mount("/", "unknown"),
    )


def is_exclusive(path: Path, lock: Callable[..., None] = fcntl.flock) -> bool:
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


def check_folder(name: str, path: Path) -> Iterator[Finding]:
    """Check a folder, or its nearest existing parent."""
    folder = existing(path)
    advice = "a checkpoint has 12 to 16 bytes a parameter, and several are kept: make room"
    yield check_room(f"{name}: room", folder, least=GIB, wanted=20 * GIB, advice=advice)
    yield (written := check_writes(f"{name}: writes", folder))
    if written.status != "fail":
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".maskwright-doctor-") as file:
            excludes = is_exclusive(Path(file.name))
        value = "another process sees it" if excludes else "another process can take a lock that is held"
        advice = "nothing prevents two runs in one run folder here: never start two (Lustre: mount it with -o flock)"
        yield judge(f"{name}: lock", value, (not excludes, "warn", advice))
