"""What is compiled on this machine before the first step: compilers, and the folders that keep what they make."""

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from launchers.doctor.commands import ask, one_line
from launchers.doctor.finding import Check, Finding, Status
from launchers.doctor.packages import installed_version
from launchers.doctor.storage import existing, mount_of
from launchers.local import gpu_count

_STALE_SECONDS = 600
FAST_TOKENIZERS = ("nanotoken", "gigatoken")


def checks(swaps: bool = False) -> list[Check]:
    """The compilers, DeepSpeed's extensions, Triton's kernels and the fast tokenizers.

    `swaps`: the run keeps the optimizer's state on a disk (zero.offload nvme), by an extension built on libaio.
    """
    looks: dict[str, Callable[[], Iterator[Finding]]] = {
        "compiler": _compiler,
        "deepspeed": partial(_deepspeed, needed=swaps or not gpu_count()),
        "triton": _triton,
        "tokenizers": _tokenizers,
    }
    if swaps:
        looks["libaio"] = _libaio
    return [Check("extensions", name, look) for name, look in looks.items()]


def extension_folder() -> Path:
    """Where torch keeps compiled extensions."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")


def kernel_folder() -> Path:
    """Where Triton keeps compiled kernels."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def judge_compiler(compiler: str | None, ninja: bool, built: bool) -> Finding:
    """g++ and ninja, by which DeepSpeed's extension for CPUs is built once; `compiler` is its version."""
    missing = [name for name, there in (("g++", compiler), ("ninja", ninja)) if not there]
    if missing and built:
        return Finding(
            "compiler", "warn", f"no {' and no '.join(missing)}", "what is built is used, nothing can be built"
        )
    if missing:
        advice = "DeepSpeed's ranks on one CPU machine then exchange gradients more slowly, by gloo: install them"
        return Finding("compiler", "warn", f"no {' and no '.join(missing)}", advice)
    return Finding("compiler", "ok", f"{compiler}; ninja")


def judge_folder(
    name: str, folder: Path, writable: bool, network: bool, built: list[str], stale: list[str], needed: bool = True
) -> Finding:
    """A folder of compiled things: `built` are those there, `stale` the locks that a killed build has left.

    `needed`: every run here compiles something, so that a folder which cannot be written is the end of it.
    """
    value = f"{folder}: {', '.join(built) or 'nothing built yet'}"
    variable = "TRITON_CACHE_DIR" if name == "triton" else "TORCH_EXTENSIONS_DIR"
    if not writable:
        status: Status = "fail" if needed else "warn"
        return Finding(name, status, f"{folder} cannot be written", f"set {variable} to a folder that can")
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
    version = one_line(answer.text.partition("\n")[0], 60) if answer and answer.works else None
    ninja = (Path(sys.executable).parent / "ninja").exists() or shutil.which("ninja") is not None
    yield judge_compiler(version, ninja, bool(_built()))


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


def _deepspeed(needed: bool) -> Iterator[Finding]:
    folder = extension_folder()
    old = time.time() - _STALE_SECONDS
    stale = [str(path) for path in folder.glob("**/lock") if path.stat().st_mtime < old]
    yield judge_folder("deepspeed", folder, *_place(folder), _built(), stale, needed)


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
