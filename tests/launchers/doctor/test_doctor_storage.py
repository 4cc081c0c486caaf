"""Doctor checks of disks: mounts and locks."""

from collections import namedtuple

from launchers.doctor import storage_checks

Partition = namedtuple("Partition", "mountpoint fstype")


def test_mounts(tmp_path, monkeypatch):
    table = [Partition("/", "overlay"), Partition("/", "ext4"), Partition(str(tmp_path / "disk"), "fuse.sshfs")]
    monkeypatch.setattr(storage_checks.psutil, "disk_partitions", lambda all: table)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk2").mkdir()
    assert storage_checks.mount_of(tmp_path / "disk2") == storage_checks.Mount("/", "ext4"), (
        "the last one mounted there"
    )
    assert storage_checks.mount_of(tmp_path / "disk" / "not" / "there").kind == "fuse.sshfs"
    network = {
        kind: storage_checks.Mount("/", kind).is_network for kind in ("fuse.sshfs", "nfs4", "fuse.overlayfs", "xfs")
    }
    assert network == {"fuse.sshfs": True, "nfs4": True, "fuse.overlayfs": False, "xfs": False}


def test_locks(tmp_path):
    assert storage_checks.is_exclusive(tmp_path / "lock")
    assert not storage_checks.is_exclusive(tmp_path / "lock", lambda *_: None), "a file system that grants every lock"
