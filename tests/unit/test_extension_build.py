"""Builds of DeepSpeed's extensions after a build that was killed, by builders that compile nothing."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.extension_build import build_extension


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "extension").mkdir()
    return tmp_path / "extension"


def build(load: Callable[[], None]) -> None:
    build_extension(SimpleNamespace(name="extension", is_compatible=lambda verbose: True, load=load))


def test_the_lock_of_a_killed_build_is_not_waited_for(folder):
    (folder / "lock").touch()
    built = []
    build(lambda: built.append((folder / "lock").exists()))
    assert built == [False]


def test_the_compilers_of_a_killed_build_are_waited_for(folder):
    """As PyTorch starts them; what is on standard input is there again afterwards."""
    usual = os.fstat(0)
    compile_slowly = "touch begun; sleep 0.5; touch ended"
    child = os.fork()
    if child == 0:
        build(lambda: subprocess.run(["sh", "-c", compile_slowly], cwd=folder, stdout=subprocess.PIPE) and None)
        os._exit(0)
    while not (folder / "begun").exists():
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not (folder / "ended").exists()
    build(lambda: (folder / "ended").rename(folder / "seen"))
    assert (folder / "seen").exists()
    assert (os.fstat(0).st_dev, os.fstat(0).st_ino) == (usual.st_dev, usual.st_ino)
