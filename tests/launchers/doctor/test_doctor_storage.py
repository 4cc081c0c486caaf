"""What `maskwright doctor` thinks of disks: mounts, room, commits, locks and speed."""

from collections import namedtuple
from pathlib import Path

from launchers.doctor import file_system_checks
from tests.support.doctor import status

Partition = namedtuple("Partition", "mountpoint fstype")


def test_mounts(tmp_path, monkeypatch):
    table = [Partition("/", "overlay"), Partition("/", "ext4"), Partition(str(tmp_path / "disk"), "fuse.sshfs")]
    monkeypatch.setattr(file_system_checks.psutil, "disk_partitions", lambda all: table)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk2").mkdir()
    assert file_system_checks.mount_of(tmp_path / "disk2") == file_system_checks.Mount("/", "ext4"), (
        "the last one mounted there"
    )
    assert file_system_checks.mount_of(tmp_path / "disk" / "not" / "there").kind == "fuse.sshfs"
    network = {
        kind: file_system_checks.Mount("/", kind).is_network for kind in ("fuse.sshfs", "nfs4", "fuse.overlayfs", "xfs")
    }
    assert network == {"fuse.sshfs": True, "nfs4": True, "fuse.overlayfs": False, "xfs": False}


def test_locks_and_speed(tmp_path):
    assert status(file_system_checks.judge_lock("x", True)) == "ok"
    assert status(file_system_checks.judge_lock("x", False)) == "warn"
    assert file_system_checks._is_exclusive(tmp_path / "lock")
    assert not file_system_checks._is_exclusive(tmp_path / "lock", lambda *_: None), (
        "a file system that grants every lock"
    )
    assert status(file_system_checks.judge_speed("x", "written at", 10e6, "slow")) == "warn"
    assert status(file_system_checks.judge_speed("x", "written at", 100e6, "slow")) == "ok"


def test_a_folder_in_memory():
    (finding,) = file_system_checks._room("x", Path("/dev/shm"))
    assert status(finding) in ("warn", "fail")
