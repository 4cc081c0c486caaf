"""What `maskwright doctor` thinks of disks: mounts, room, speed, and state that is swapped there."""

from launchers.doctor import storage
from tests.support.doctor import status

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:50 / /shared rw - nfs4 server:/export rw,vers=4.2
31 22 0:51 / /shared/my\040disk rw - fuse.sshfs me@host:/ rw
32 22 0:52 / /shared2 rw - tmpfs tmpfs rw
"""


def test_mounts(tmp_path):
    assert storage.mount_of(tmp_path, MOUNTS) == storage.Mount("/", "ext4")
    table = MOUNTS.replace("/shared/my\\040disk", str(tmp_path).replace(" ", "\\040"))
    assert storage.mount_of(tmp_path / "not" / "there", table).kind == "fuse.sshfs"
    assert storage.Mount("/", "fuse.sshfs").network
    assert storage.Mount("/", "nfs4").network
    assert not storage.Mount("/", "fuse.overlayfs").network
    assert not storage.Mount("/", "xfs").network


def test_storage(tmp_path):
    disk, nfs, memory = (storage.Mount("/", kind) for kind in ("xfs", "nfs", "tmpfs"))
    held = storage.Held(1 << 40, 10**6)
    assert status(storage.judge_room("run folder", tmp_path, disk, held)) == "ok"
    assert status(storage.judge_room("run folder", tmp_path, nfs, held)) == "ok"
    assert status(storage.judge_room("run folder", tmp_path, memory, held)) == "warn"
    assert status(storage.judge_room("run folder", tmp_path, disk, storage.Held(5 << 30, None))) == "warn"
    assert status(storage.judge_room("run folder", tmp_path, disk, storage.Held(1 << 20, None))) == "fail"
    assert status(storage.judge_room("run folder", tmp_path, disk, storage.Held(1 << 40, 3))) == "fail"
    assert status(storage.judge_fsync("x", 0.01)) == "ok"
    assert status(storage.judge_fsync("x", 0.5)) == "warn"
    assert status(storage.judge_lock("x", None)) == "ok"
    assert status(storage.judge_lock("x", "no locks")) == "warn"
    assert status(storage.judge_skew("x", -0.5)) == "ok"
    assert status(storage.judge_skew("x", -30.0)) == "warn"
    assert status(storage.judge_speed("x", "written at", 10e6, 50e6, "slow")) == "warn"
    assert status(storage.judge_speed("x", "written at", 100e6, 50e6, "slow")) == "ok"


def refuse(**_):
    raise PermissionError(13, "Permission denied")
