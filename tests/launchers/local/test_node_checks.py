"""Checks of a node's memory and folders."""

from launchers.local import GIB, check_memory, check_room, check_writes
from tests.support.doctor import status


def test_memory():
    assert status(check_memory(64 * GIB, 60 * GIB)) == "ok"
    assert status(check_memory(64 * GIB, int(1.9 * GIB))) == "warn"
    assert status(check_memory(64 * GIB, GIB)) == "fail", "less than 2 %"


def test_folders(tmp_path):
    assert status(check_room("x", tmp_path, least=1)) == "ok"
    assert status(check_room("x", tmp_path, least=1, wanted=1 << 60)) == "warn"
    assert status(check_room("x", tmp_path, least=1 << 60)) == "fail"
    assert status(check_room("x", tmp_path / "none", least=1)) == "fail"
    assert status(check_writes("x", tmp_path)) in ("ok", "warn")
    assert status(check_writes("x", tmp_path / "none")) == "fail"
    assert not list(tmp_path.iterdir())
