"""List of the checks of a machine and, with a config, of its run."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.urls import is_url
from launchers.doctor import full_checks, gpu_checks, machine_checks, package_checks
from launchers.doctor.check_runner import Check, run_checks
from launchers.doctor.storage_checks import check_folder
from launchers.doctor.tracking_checks import check_mlflow
from launchers.local import Finding, gpu_count
from launchers.slurm import check_slurm
from pretrain.config import Config, TrackConfig
from pretrain.planning import CHECKS, run_warnings


def examine_machine(config: Config | None, full: bool = False) -> Iterator[Finding]:
    """Run all checks of this machine and, with a config, of its run. `full` imports torch and DeepSpeed."""
    return run_checks(all_checks(config, full))


def all_checks(config: Config | None, full: bool = False) -> list[Check]:
    """All checks of one machine. `full` also imports torch and DeepSpeed, and runs a kernel."""
    checks = checks_of_machine(config)
    if config:
        checks.append(Check("run", "preflight", partial(_preflight, config), 120))
    checks.append(Check("slurm", "slurm", check_slurm, 40))
    if full:
        checks += [
            Check("full", "torch runs", full_checks.check_torch, 120),
            Check("full", "triton runs", full_checks.check_triton, 300),
            Check("full", "deepspeed imports", full_checks.check_deepspeed, 120),
        ]
    return checks


def checks_of_machine(config: Config | None) -> list[Check]:
    """The checks whose result can differ between nodes. All are fast and do not import torch."""
    gpus = gpu_count()
    precision = config.train.precision if config else None
    compiler = Check("packages", "compiler", partial(package_checks.check_compiler, gpus))
    checks = [
        Check("packages", "python", package_checks.check_python),
        Check("packages", "packages", package_checks.check_packages),
        *([compiler] if package_checks.needs_compiler(config, gpus) else []),
        Check("machine", "cores", machine_checks.check_cores),
        Check("machine", "memory", machine_checks.check_own_memory),
        Check("machine", "shm", machine_checks.check_shm),
        Check("gpu", "gpus", partial(gpu_checks.check_gpus, precision), 20),
        *([Check("gpu", "attention", partial(gpu_checks.check_attention, config), 20)] if config else []),
    ]
    folders = {"run folder": config.run.dir} if config else {"working folder": Path.cwd()}
    sources = [source.path for phase in config.run_phases for source in phase.config.data.train] if config else []
    if config and config.data.cache_dir and any(map(is_url, sources)):
        folders["data.cache_dir"] = config.data.cache_dir
    checks += [Check("storage", name, partial(check_folder, name, path), 30) for name, path in folders.items()]
    track = config.track if config else TrackConfig()
    return [*checks, Check("tracking", "mlflow", partial(check_mlflow, track), 60)]


def _preflight(config: Config) -> Iterator[Finding]:
    """Run the preflight checks of a run; if its data can be opened, its warnings too."""
    for check in CHECKS:
        try:
            check.run(config, 1)
        except UserError as error:
            yield Finding(check.name, "fail", str(error))
        else:
            yield Finding(check.name, "ok", check.sound)
    with contextlib.suppress(UserError):  # a check above says it
        yield from (Finding("settings", "warn", warning) for warning in run_warnings(config))
