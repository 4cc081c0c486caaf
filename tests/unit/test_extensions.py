"""Builds of DeepSpeed's extensions, by a builder that compiles nothing."""

from types import SimpleNamespace

from pretrain.extensions import build_extension


def test_the_lock_of_a_killed_build_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "extension" / "lock"
    lock.parent.mkdir()
    lock.touch()
    found = []
    build_extension(SimpleNamespace(name="extension", load=lambda: found.append(lock.exists())))
    assert found == [False]
