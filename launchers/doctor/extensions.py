"""Checks of compilers, of the folder of compiled kernels, and of the fast tokenizers."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from launchers.doctor.commands import ask, one_line
from launchers.doctor.finding import Check, Finding
from launchers.doctor.packages import installed_version
from launchers.doctor.storage import existing, mount_of
from launchers.local import gpu_count
from pretrain.config import Config

FAST_TOKENIZERS = ("nanotoken", "gigatoken")


def checks(config: Config | None) -> list[Check]:
    """Triton's kernels and the fast tokenizers; the C++ compiler where the run uses it."""
    looks: dict[str, Callable[[], Iterator[Finding]]] = {"triton": _triton, "tokenizers": _tokenizers}
    if config and config.train.compile and not gpu_count():
        looks["compiler"] = _compiler
    return [Check("extensions", name, look) for name, look in looks.items()]


def kernel_folder() -> Path:
    """Where Triton keeps compiled kernels."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def judge_compiler(version: str | None) -> Finding:
    """The C++ compiler that train.compile needs on a CPU."""
    if version is None:
        return Finding("compiler", "fail", "no g++", "train.compile needs it on a CPU: install g++, or set it to false")
    return Finding("compiler", "ok", version)


def judge_kernel_folder(folder: Path, writable: bool, network: bool, kernels: int) -> Finding:
    """The folder of compiled kernels, and how many it holds."""
    value = f"{folder}: {f'{kernels} kernels' if kernels else 'nothing built yet'}"
    if not writable:
        return Finding("triton", "fail", f"{folder} cannot be written", "set TRITON_CACHE_DIR to a folder that can")
    if network:
        advice = "all nodes compile at once into one folder: set TRITON_CACHE_DIR to a folder on each node's own disk"
        return Finding("triton", "warn", f"{value} (network)", advice)
    return Finding("triton", "ok", value)


def judge_tokenizers(versions: dict[str, str | None]) -> Finding:
    """The fast packages, without which data preparation is slower and no different."""
    there = [f"{name} {version}" for name, version in versions.items() if version]
    missing = [name for name, version in versions.items() if not version]
    if missing:
        advice = "data preparation would be up to 25 times as fast: python -m pip install 'maskwright[fast-tokenizers]'"
        return Finding("tokenizers", "skipped", f"no {', no '.join(missing)}: the tokenizers library is used", advice)
    return Finding("tokenizers", "ok", f"{', '.join(there)}; used where they give the tokenizers library's ids")


def _compiler() -> Iterator[Finding]:
    answer = ask(os.environ.get("CXX", "g++"), "--version")
    yield judge_compiler(one_line(answer.text.partition("\n")[0], 60) if answer and answer.works else None)


def _triton() -> Iterator[Finding]:
    if not gpu_count():
        yield Finding("triton", "skipped", "kernels are for GPUs, and there is none")
        return
    if importlib.util.find_spec("triton") is None:
        yield Finding("triton", "fail", "not installed", "it comes with torch's CUDA build: install that")
        return
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        yield Finding("triton", "fail", "no C compiler", "Triton compiles its launchers with one: install gcc")
        return
    folder = kernel_folder()
    kernels = sum(1 for _ in folder.glob("*")) if folder.is_dir() else 0
    yield judge_kernel_folder(folder, *_place(folder), kernels)


def _place(folder: Path) -> tuple[bool, bool]:
    """Whether a folder, or the nearest one above it, can be written to, and is on a network file system."""
    return os.access(existing(folder), os.W_OK | os.X_OK), mount_of(folder).network


def _tokenizers() -> Iterator[Finding]:
    yield judge_tokenizers({name: installed_version(name) for name in FAST_TOKENIZERS})
