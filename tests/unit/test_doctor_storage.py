"""What `maskwright doctor` thinks of disks: mounts, room, commits, locks and speed."""

from collections import namedtuple
from pathlib import Path

from launchers.doctor import storage
from tests.support.doctor import status

Partition = namedtuple("Partition", "mountpoint fstype")


def test_mounts(tmp_path, monkeypatch):
    table = [Partition("/", "overlay"), Partition("/", "ext4"), Partition(str(tmp_path / "disk"), "fuse.sshfs")]
    monkeypatch.setattr(storage.psutil, "disk_partitions", lambda all: table)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk2").mkdir()
    assert storage.mount_of(tmp_path / "disk2") == storage.Mount("/", "ext4"), "the last one mounted there"
    assert storage.mount_of(tmp_path / "disk" / "not" / "there").kind == "fuse.sshfs"
    network = {kind: storage.Mount("/", kind).is_network for kind in ("fuse.sshfs", "nfs4", "fuse.overlayfs", "xfs")}
    assert network == {"fuse.sshfs": True, "nfs4": True, "fuse.overlayfs": False, "xfs": False}


def test_locks_and_speed(tmp_path):
    assert status(storage.judge_lock("x", True)) == "ok"
    assert status(storage.judge_lock("x", False)) == "warn"
    assert storage._is_exclusive(tmp_path / "lock")
    assert not storage._is_exclusive(tmp_path / "lock", lambda *_: None), "a file system that grants every lock"
    assert status(storage.judge_speed("x", "written at", 10e6, "slow")) == "warn"
    assert status(storage.judge_speed("x", "written at", 100e6, "slow")) == "ok"


def test_a_folder_in_memory():
    (finding,) = storage._room("x", Path("/dev/shm"))
    assert status(finding) in ("warn", "fail")
