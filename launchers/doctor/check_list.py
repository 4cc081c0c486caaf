"""List of the checks of a machine and, with a config, of its run."""

from collections.abc import Iterator
from pathlib import Path

from data_prep.errors import UserError
from data_prep.urls import is_url
from launchers.doctor import full_checks, gpu_checks, machine_checks, package_checks, slurm_checks, storage_checks
from launchers.doctor.check_runner import Check
from launchers.doctor.tracking_checks import checks_of_tracking
from launchers.node_checks import Finding
from pretrain.config import Config, TrackConfig
from pretrain.planning import CHECKS


def all_checks(config: Config | None, full: bool = False) -> list[Check]:
    """All checks of one machine. `full` also imports torch and DeepSpeed, and runs a kernel."""
    found = checks_of_machine(config) + (checks_of_run(config) if config else [])
    return [*found, *slurm_checks.checks(), *(full_checks.checks() if full else [])]


def checks_of_machine(config: Config | None) -> list[Check]:
    """The checks whose result can differ between nodes. All are fast and do not import torch."""
    found = [
        *package_checks.checks(config),
        *machine_checks.checks(),
        *gpu_checks.checks(config.train.precision if config else None),
    ]
    if config is None:
        return [*found, *storage_checks.checks("working folder", Path.cwd()), *checks_of_tracking(TrackConfig())]
    found += storage_checks.checks("run folder", config.run.dir)
    if config.data.cache_dir and any(is_url(source.path) for source in config.data.train):
        found += storage_checks.checks("data.cache_dir", config.data.cache_dir)
    return [*found, *checks_of_tracking(config.track)]


def checks_of_run(config: Config) -> list[Check]:
    """The preflight checks of a run."""
    return [Check("run", "preflight", lambda: _preflight(config), seconds=120)]


def _preflight(config: Config) -> Iterator[Finding]:
    for check in CHECKS:
        try:
            check.run(config, 1)
        except UserError as error:
            yield Finding(check.name, "fail", str(error))
        else:
            yield Finding(check.name, "ok", check.sound)
