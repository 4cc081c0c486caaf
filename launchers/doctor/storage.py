"""File systems: whether they keep what Maskwright trusts them with, and how fast they are."""

import contextlib
import errno
import fcntl
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from launchers.doctor.finding import Check, Finding

SPEED_BYTES = 64 << 20
SPEED_SECONDS = 2.0
_CHUNK = 4 << 20
_FSYNCS = 5
NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
NETWORK |= {"ocfs2", "orangefs", "panfs", "smb3", "smbfs", "virtiofs", "wekafs"}
_NETWORK_FUSE = ("sshfs", "s3fs", "goofys", "gcsfuse", "glusterfs", "juicefs", "ceph", "lustre", "mount-s3")
LEAST_BYTES, WANTED_BYTES = 1 << 30, 20 << 30
LEAST_FILES = 1000
SLOW_FSYNC = 0.2  # seconds
SLOW_WRITES, SLOW_READS = 50e6, 50e6  # bytes a second
_SKEW_SECONDS = 2.0


class Mount(NamedTuple):
    """Where a path lies."""

    point: str
    kind: str

    @property
    def network(self) -> bool:
        """Whether other machines share it."""
        return self.kind in NETWORK or (
            self.kind.startswith("fuse.") and any(word in self.kind for word in _NETWORK_FUSE)
        )


class Held(NamedTuple):
    """Bytes and files that a file system has room for; files are None where it does not count them."""

    free: int
    files: int | None


def write_checks(place: str, path: Path) -> list[Check]:
    """The checks of a folder that a run writes to, or of the nearest one above it that exists."""
    return [
        Check("storage", f"{place}: room", lambda: _room(place, path)),
        Check("storage", f"{place}: writes", lambda: _writes(place, path), seconds=20),
        Check("storage", f"{place}: speed", lambda: _speed(place, path), seconds=30),
    ]


def read_checks(place: str, folder: Path) -> list[Check]:
    """The check of a data set's folder: how fast its shards are read."""
    return [Check("storage", f"{place}: reads", lambda: _reads(place, folder), seconds=30)]


def judge_room(place: str, path: Path, mount: Mount, held: Held) -> Finding:
    """Room for checkpoints."""
    name = f"{place}: room"
    value = f"{held.free / 1e9:,.1f} GB free on {mount.kind}{' (network)' if mount.network else ''}, {path}"
    if held.free < LEAST_BYTES or (held.files is not None and held.files < LEAST_FILES):
        short = "" if held.free < LEAST_BYTES else f"; {held.files} files can still be made"
        return Finding(name, "fail", value + short, "a checkpoint has 12 to 16 bytes a parameter: make room first")
    if mount.kind in ("tmpfs", "ramfs"):
        return Finding(name, "warn", value, "it is in memory, and gone after a reboot: choose a folder on a disk")
    if held.free < WANTED_BYTES:
        return Finding(name, "warn", value, "a checkpoint has 12 to 16 bytes a parameter, and several are kept")
    return Finding(name, "ok", value)


def judge_fsync(place: str, seconds: float) -> Finding:
    """The median time of an fsync of 4 KiB."""
    value = f"renames are atomic, fsync takes {1000 * seconds:.1f} ms"
    if seconds > SLOW_FSYNC:
        advice = "every commit of a checkpoint waits for several: another file system would be better"
        return Finding(f"{place}: writes", "warn", value, advice)
    return Finding(f"{place}: writes", "ok", value)


def judge_lock(place: str, problem: str | None) -> Finding:
    """Advisory locks, which keep two runs out of one folder; `problem` is what went wrong with them."""
    if problem is None:
        return Finding(f"{place}: lock", "ok", "held, and seen by another process")
    advice = "nothing keeps a second run out of a run folder here: never start two on one (Lustre: mount with -o flock)"
    return Finding(f"{place}: lock", "warn", problem, advice)


def judge_skew(place: str, seconds: float) -> Finding:
    """How far the file system's clock is ahead of this machine's."""
    value = (
        f"its clock is {seconds:+.1f} s from this machine's" if abs(seconds) > 0.1 else "its clock is this machine's"
    )
    if abs(seconds) > _SKEW_SECONDS:
        return Finding(f"{place}: clock", "warn", value, "times of files mislead: keep all machines' clocks by NTP")
    return Finding(f"{place}: clock", "ok", value)


def judge_speed(name: str, what: str, rate: float, slow: float, advice: str) -> Finding:
    """Bytes a second against the least that does not hold a run up."""
    value = f"{what} {rate / 1e6:,.0f} MB/s"
    return Finding(name, "warn" if rate < slow else "ok", value, advice if rate < slow else "")


def existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def mount_of(path: Path, table: str | None = None) -> Mount:
    """The mount that holds a path, from the text of /proc/self/mountinfo."""
    if table is None:
        table = Path("/proc/self/mountinfo").read_text()
    place = str(existing(path).resolve())
    found = Mount("/", "unknown")
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found.point):
            found = Mount(point, after.split()[0])
    return found


def _room(place: str, path: Path) -> Iterator[Finding]:
    folder = existing(path)
    yield judge_room(place, folder, mount_of(folder), _held(folder))


def _held(folder: Path) -> Held:
    numbers = os.statvfs(folder)
    return Held(numbers.f_bavail * numbers.f_frsize, numbers.f_favail if numbers.f_files else None)


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A folder for trials at a place, taken away at the end."""
    folder = Path(tempfile.mkdtemp(prefix=".maskwright-doctor-", dir=existing(path)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _writes(place: str, path: Path) -> Iterator[Finding]:
    try:
        with _scratch(path) as folder:
            seconds = statistics.median(_replaced(folder) for _ in range(_FSYNCS))
            yield judge_fsync(place, seconds)
            yield judge_lock(place, _lock_problem(folder / "lock"))
            begin = time.time()
            (folder / "now").touch()
            yield judge_skew(place, (folder / "now").stat().st_mtime - (begin + time.time()) / 2)
    except OSError as error:
        yield Finding(f"{place}: writes", "fail", f"{existing(path)}: {error.strerror}", _advice(error))


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room, or choose another folder"
    return "choose a folder that you may write to, on every node"


def _replaced(folder: Path) -> float:
    """Replace a file as a commit does, and read it back; seconds of the fsync."""
    before, after = folder / "before", folder / "after"
    after.write_bytes(b"old")
    with open(before, "wb") as file:
        file.write(os.urandom(4096))
        file.flush()
        begin = time.perf_counter()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - begin
    os.replace(before, after)
    if before.exists() or after.stat().st_size != 4096:
        raise OSError(errno.EIO, "a renamed file is not what it was")
    return seconds


def _lock_problem(path: Path) -> str | None:
    """What is wrong with flock: it fails, or another process takes what this one holds."""
    with open(path, "w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"it cannot be locked ({error.strerror})"
        child = os.fork()
        if child == 0:
            os._exit(_try_lock(path))
        taken = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "another process takes a lock that is held" if taken == 1 else None


def _try_lock(path: Path) -> int:
    """1 where the lock could be taken."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0
    return 1


def _speed(place: str, path: Path) -> Iterator[Finding]:
    name = f"{place}: speed"
    try:
        with _scratch(path) as folder:
            file = folder / "speed"
            done, seconds = _timed_write(file)
            advice = "checkpoints take long to write: a faster disk, or checkpoint.every_steps larger"
            yield judge_speed(name, "written at", done / seconds, SLOW_WRITES, advice)
    except OSError as error:
        yield Finding(name, "fail", f"{existing(path)}: {error.strerror}", _advice(error))


def _timed_write(path: Path) -> tuple[int, float]:
    """Bytes written and on disk, in at most SPEED_BYTES or about SPEED_SECONDS, and the seconds that took."""
    chunk = os.urandom(_CHUNK)  # no zeros: some file systems do not write them
    done, begin = 0, time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        while done < SPEED_BYTES and time.perf_counter() - begin < SPEED_SECONDS:
            done += file.write(chunk)
            os.fsync(file.fileno())
    return done, time.perf_counter() - begin


def _reads(place: str, folder: Path) -> Iterator[Finding]:
    shards = sorted((folder / "shards").glob("*.tar"), key=lambda shard: shard.stat().st_size)
    if not shards:
        yield Finding(f"{place}: reads", "skipped", f"{folder} has no shards")
        return
    done, seconds = _timed_read(shards[-1])
    mount = mount_of(folder)
    where = f"from {mount.kind}{' (network)' if mount.network else ''} at"
    if done < _CHUNK:
        yield Finding(f"{place}: reads", "skipped", f"{done} bytes are too few to tell a speed, {where[:-3]}")
        return
    advice = "copy the data set to a disk of each node; training reads 2 to 4 bytes a token"
    yield judge_speed(f"{place}: reads", f"read {where}", done / seconds, SLOW_READS, advice)


def _timed_read(path: Path) -> tuple[int, float]:
    """Bytes read past the page cache where the system lets us, and the seconds that took; bounded as writes are."""
    buffer = bytearray(_CHUNK)
    done = 0
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        while done < SPEED_BYTES and time.perf_counter() - begin < SPEED_SECONDS and (count := file.readinto(buffer)):
            done += count
        return done, max(time.perf_counter() - begin, 1e-9)
