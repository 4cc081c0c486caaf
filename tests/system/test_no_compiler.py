"""Training on a CPU compiles nothing, so it starts on a machine without a compiler."""

import os
from pathlib import Path

from tests.support import runs

COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "clang++", "nvcc", "ninja", "ld")


def recording_programs(folder: Path, calls: Path) -> None:
    """Programs with the names of compilers that write each call into a file, and fail."""
    folder.mkdir()
    for name in COMPILERS:
        (folder / name).write_text(f'#!/bin/sh\necho "$0" "$@" >> {calls}\nexit 1\n')
        (folder / name).chmod(0o755)


def segments() -> set[Path]:
    """The shared memory that DeepSpeed's extension for CPUs makes."""
    return set(Path("/dev/shm").glob("deepspeed_*"))


def test_training_on_a_cpu_starts_no_compiler_and_leaves_no_shared_memory(data, tmp_path, monkeypatch):
    calls, before = tmp_path / "calls", segments()
    recording_programs(tmp_path / "bin", calls)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    runs.trained(data, tmp_path / "run", 2, train__steps=2)
    assert not calls.exists(), calls.read_text()
    assert not (tmp_path / "extensions").exists()
    assert segments() <= before
