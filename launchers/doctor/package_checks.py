"""Checks of Python, the installed packages and compilers against what Maskwright needs. Nothing is imported."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from data_prep.common.packages import installed_version
from launchers.local import Finding, gpu_count, judge
from pretrain.config import Config

NAMED = ("torch", "deepspeed", "transformers", "triton", "mlflow", "webdataset")
_INSTALL = "install it into this environment: python -m pip install '{0}'"


def judge_python(version: str, supported: str, system: str) -> Finding:
    """Judge the versions of Python and the operating system."""
    right = SpecifierSet(supported).contains(version, prereleases=True)
    return judge(
        "python",
        f"{version} on {system}",
        (not right, "fail", f"Maskwright needs Python {supported}: make a new environment with one"),
        (not system.startswith("Linux"), "warn", "training is tested on Linux only"),
    )


def judge_version(requirement: str, installed: str | None, needed: bool = True) -> Finding:
    """Compare a package's version with a requirement such as `torch<2.14,>=2.11`."""
    wanted = Requirement(requirement)
    if installed is None and not needed:
        return Finding(wanted.name, "skipped", "not installed, and not needed without a GPU")
    right = installed is not None and wanted.specifier.contains(installed, prereleases=True)
    advice = f"Maskwright needs {wanted.specifier}: " + _INSTALL.format(f"{wanted.name}{wanted.specifier}")
    return judge(wanted.name, installed or "not installed", (not right, "fail", advice))


def is_always_needed(requirement: str) -> bool:
    """Whether a requirement applies to this machine without extras."""
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})


def check_python() -> Iterator[Finding]:
    """Check the version of Python."""
    try:
        supported = metadata.metadata("maskwright")["Requires-Python"]
    except metadata.PackageNotFoundError:
        supported = ">=3.10"
    yield judge_python(platform.python_version(), supported, platform.platform(terse=True))


def check_packages() -> Iterator[Finding]:
    """Check the versions of the packages that Maskwright needs."""
    try:
        wanted = {Requirement(text).name: text for text in reversed(metadata.requires("maskwright") or [])}
    except metadata.PackageNotFoundError:
        advice = "install it in the folder of its pyproject.toml: python -m pip install --editable ."
        yield Finding("maskwright", "fail", "not installed, so the versions that it needs are not known", advice)
        return
    for name in NAMED:
        yield judge_version(wanted[name], installed_version(name), needed=name != "triton" or gpu_count() > 0)
    if gpu_count() and (installed_version("torch") or "").endswith("+cpu"):
        advice = "torch would train on the CPU while GPUs are idle: install torch's CUDA build (see pytorch.org)"
        yield Finding("torch build", "fail", "torch has no CUDA", advice)
    rest = {name: text for name, text in sorted(wanted.items()) if name not in NAMED and is_always_needed(text)}
    others = [judge_version(text, installed_version(name)) for name, text in rest.items()]
    wrong = [finding for finding in others if finding.status != "ok"]
    yield from wrong or [Finding("others", "ok", f"{len(others)} packages have supported versions")]


def needs_compiler(config: Config | None, gpus: int) -> bool:
    """Whether a run compiles code: Triton's kernels on a GPU, or train.compile."""
    return gpus > 0 or (config is not None and config.train.compile is True)


def check_compiler(gpus: int) -> Iterator[Finding]:
    """Check for a C compiler (Triton's kernels on a GPU) or a C++ compiler (train.compile on a CPU)."""
    programs = (os.environ.get("CC", "cc"), "gcc", "clang") if gpus else (os.environ.get("CXX", "g++"),)
    program = next(filter(None, map(shutil.which, programs)), None)
    advice = f"install gcc and g++: {'kernels of Triton' if gpus else 'train.compile'} cannot be built"
    yield judge("compiler", program or f"no {' or '.join(programs)}", (program is None, "fail", advice))
