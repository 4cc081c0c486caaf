"""Installed packages, by their metadata; nothing is imported."""

from importlib.metadata import PackageNotFoundError, version


def installed_version(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
