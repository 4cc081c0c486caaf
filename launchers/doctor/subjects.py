"""The list of the doctor's checks for a machine, with a config or without."""

from pathlib import Path

from data_prep.remote import is_url
from launchers.doctor import datasets, gpus, heavy, machine, packages, slurm, storage, tracking
from launchers.doctor.finding import Check
from pretrain.config import Config
from pretrain.config.run import TrackConfig


def machine_checks(config: Config | None) -> list[Check]:
    """The checks whose result can differ between the nodes of a cluster; none takes long or imports torch."""
    found = [*packages.checks(config), *machine.checks(), *gpus.checks(config.train.precision if config else None)]
    if config is None:
        return [*found, *storage.write_checks("working folder", Path.cwd()), *tracking.checks(TrackConfig())]
    found += storage.write_checks("run folder", config.run.dir)
    places = datasets.locations(config)
    for name, location in places.items():
        if not is_url(location):
            found += storage.read_checks(name, Path(location))
    if config.data.cache_dir and any(map(is_url, places.values())):
        found += storage.write_checks("data.cache_dir", config.data.cache_dir)
    return [*found, *tracking.checks(config.track)]


def all_checks(config: Config | None, full: bool = False, deep: bool = False) -> list[Check]:
    """All checks of one machine.

    Args:
        full: also import torch and DeepSpeed, run a kernel and compare tokenizers.
        deep: also read every byte of the data sets.
    """
    found = machine_checks(config) + (datasets.checks(config, deep) if config else [])
    return [*found, *slurm.checks(), *(heavy.checks(config) if full else [])]
