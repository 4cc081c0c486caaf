"""Checks of compilers, and of the folders for compiled code."""

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launchers.doctor.commands import ask, one_line
from launchers.doctor.finding import Check, Finding
from launchers.doctor.packages import installed_version
from launchers.doctor.storage import existing, mount_of
from launchers.local import gpu_count
from pretrain.config import Config

_STALE_SECONDS = 600
FAST_TOKENIZERS = ("nanotoken", "gigatoken")


def checks(config: Config | None) -> list[Check]:
    """Triton's kernels and the fast tokenizers; the C++ compiler and DeepSpeed's extensions where the run uses them."""
    looks: dict[str, Callable[[], Iterator[Finding]]] = {"triton": _triton, "tokenizers": _tokenizers}
    if config and config.train.compile and not gpu_count():
        looks["compiler"] = _compiler
    if config and config.zero.offload == "nvme":  # by an extension that is built on libaio
        looks |= {"deepspeed": _deepspeed, "libaio": _libaio}
    return [Check("extensions", name, look) for name, look in looks.items()]


def extension_folder() -> Path:
    """Where torch keeps compiled extensions."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")


def kernel_folder() -> Path:
    """Where Triton keeps compiled kernels."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def judge_compiler(version: str | None) -> Finding:
    """The C++ compiler that train.compile needs on a CPU."""
    if version is None:
        return Finding("compiler", "fail", "no g++", "train.compile needs it on a CPU: install g++, or set it to false")
    return Finding("compiler", "ok", version)


def judge_folder(name: str, folder: Path, writable: bool, network: bool, built: list[str], stale: list[str]) -> Finding:
    """A folder of compiled code: `built` is what it holds, `stale` the locks that killed builds have left."""
    value = f"{folder}: {', '.join(built) or 'nothing built yet'}"
    variable = "TRITON_CACHE_DIR" if name == "triton" else "TORCH_EXTENSIONS_DIR"
    if not writable:
        return Finding(name, "fail", f"{folder} cannot be written", f"set {variable} to a folder that can")
    if stale:
        advice = f"unless a build is running, it will be waited for without end: rm {' '.join(stale)}"
        return Finding(name, "warn", f"{value}; an old lock", advice)
    if network:
        advice = f"all nodes compile at once into one folder: set {variable} to a folder on each node's own disk"
        return Finding(name, "warn", f"{value} (network)", advice)
    return Finding(name, "ok", value)


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


def _built() -> list[str]:
    return sorted({path.stem for path in extension_folder().glob("**/*.so")})


def judge_libaio(compiles: bool | None) -> Finding:
    """Whether a program that uses libaio can be built; None where there is no compiler to ask."""
    if compiles:
        return Finding("libaio", "ok", "can be built with, for zero.offload nvme")
    if compiles is None:
        return Finding("libaio", "fail", "no g++ to build with", "zero.offload nvme needs an extension: install g++")
    advice = "install libaio-dev (Debian, Ubuntu) or libaio-devel (Fedora, RHEL) on every node, or zero.offload cpu"
    return Finding("libaio", "fail", "cannot be built with, and zero.offload nvme needs it", advice)


def _libaio() -> Iterator[Finding]:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        yield judge_libaio(None)
        return
    with tempfile.TemporaryDirectory(prefix="maskwright-doctor-") as folder:
        source = Path(folder, "aio.cpp")
        source.write_text("#include <libaio.h>\nint main() { io_context_t c = 0; return io_setup(1, &c); }\n")
        answer = ask(compiler, str(source), "-laio", "-o", f"{folder}/aio")
    yield judge_libaio(answer is not None and answer.works)


def _deepspeed() -> Iterator[Finding]:
    folder = extension_folder()
    old = time.time() - _STALE_SECONDS
    stale = [str(path) for path in folder.glob("**/lock") if path.stat().st_mtime < old]
    yield judge_folder("deepspeed", folder, *_place(folder), _built(), stale)


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
    yield judge_folder("triton", folder, *_place(folder), [f"{kernels} kernels"] if kernels else [], [])


def _place(folder: Path) -> tuple[bool, bool]:
    """Whether a folder, or the nearest one above it, can be written to, and is on a network file system."""
    return os.access(existing(folder), os.W_OK | os.X_OK), mount_of(folder).network


def _tokenizers() -> Iterator[Finding]:
    yield judge_tokenizers({name: installed_version(name) for name in FAST_TOKENIZERS})
