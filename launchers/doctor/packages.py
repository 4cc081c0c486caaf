"""Python and the installed packages, against what Maskwright supports; nothing is imported."""

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from launchers.doctor.finding import Check, Finding
from launchers.local import gpu_count

NAMED = ("torch", "deepspeed", "transformers", "triton", "mlflow", "webdataset")
_INSTALL = "install it into this environment: python -m pip install '{0}'"


def checks() -> list[Check]:
    """Python, the named packages a line each, and the others in one."""
    return [Check("packages", "python", _python), Check("packages", "packages", _packages)]


def judge_python(version: str, supported: str, system: str) -> Finding:
    """Python and operating system."""
    value = f"{version} on {system}"
    if not SpecifierSet(supported).contains(version, prereleases=True):
        return Finding("python", "fail", value, f"Maskwright needs Python {supported}: make a new environment with one")
    if not system.startswith("Linux"):
        return Finding("python", "warn", value, "training is tested on Linux alone")
    return Finding("python", "ok", value)


def judge_version(requirement: str, installed: str | None, needed: bool = True) -> Finding:
    """A package's version against a requirement such as `torch<2.14,>=2.11`."""
    wanted = Requirement(requirement)
    text = f"{wanted.name}{wanted.specifier}"
    if installed is None and not needed:
        return Finding(wanted.name, "skipped", "not installed, and not needed without a GPU")
    if installed is None:
        return Finding(wanted.name, "fail", "not installed", _INSTALL.format(text))
    if not wanted.specifier.contains(installed, prereleases=True):
        advice = f"Maskwright is made for {wanted.specifier}: " + _INSTALL.format(text)
        return Finding(wanted.name, "fail", installed, advice)
    return Finding(wanted.name, "ok", installed)


def installed_version(package: str) -> str | None:
    """The version of a package, from its metadata."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Iterator[Finding]:
    try:
        supported = metadata.metadata("maskwright")["Requires-Python"]
    except metadata.PackageNotFoundError:
        supported = ">=3.10"
    finding = judge_python(platform.python_version(), supported, platform.platform(terse=True))
    yield finding
    if sys.prefix == sys.base_prefix:
        advice = "an environment of its own keeps other projects' packages away: python3 -m venv .venv"
        yield Finding("environment", "warn", f"{sys.prefix} is no virtual environment", advice)
    else:
        yield Finding("environment", "ok", sys.prefix)


def _packages() -> Iterator[Finding]:
    try:
        wanted = {Requirement(text).name: text for text in reversed(metadata.requires("maskwright") or [])}
    except metadata.PackageNotFoundError:
        advice = "install it where its pyproject.toml lies: python -m pip install --editable ."
        yield Finding("maskwright", "fail", "not installed, so it is not known which versions it needs", advice)
        return
    for name in NAMED:
        yield judge_version(wanted[name], installed_version(name), needed=name != "triton" or gpu_count() > 0)
    others = [
        judge_version(text, installed_version(name))
        for name, text in sorted(wanted.items())
        if name not in NAMED and _always(text)
    ]
    yield from (finding for finding in others if finding.status != "ok")
    if all(finding.status == "ok" for finding in others):
        yield Finding("others", "ok", f"{len(others)} packages are of supported versions")


def _always(text: str) -> bool:
    """Whether a requirement holds here, with no extra asked for."""
    marker = Requirement(text).marker
    return marker is None or marker.evaluate({"extra": ""})
