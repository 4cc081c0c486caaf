"""Which checks are made of a machine, with a config or without."""

from pathlib import Path

from data_prep.remote import is_url
from launchers.doctor import datasets, extensions, gpus, heavy, machine, network, packages, slurm, storage, tracking
from launchers.doctor.finding import Check
from pretrain.config import Config
from pretrain.config.run import TrackConfig


def machine_checks(config: Config | None) -> list[Check]:
    """What can differ between the nodes of a cluster; none takes long or imports torch."""
    found = [
        *packages.checks(),
        *machine.checks(),
        *network.checks(),
        *gpus.checks(config.train.precision if config else None),
    ]
    found += [
        *extensions.checks(config),
        *storage.write_checks("run folder" if config else "working folder", _folder(config)),
    ]
    for name, location in datasets.locations(config).items() if config else ():
        if not is_url(location):
            found += storage.read_checks(name, Path(location))
    if config and config.data.cache_dir and any(map(is_url, datasets.locations(config).values())):
        found += storage.write_checks("data.cache_dir", config.data.cache_dir)
    return [*found, *tracking.checks(config.track if config else TrackConfig())]


def all_checks(config: Config | None, full: bool = False, deep: bool = False) -> list[Check]:
    """All checks of one machine.

    Args:
        full: also import torch, run a kernel, import DeepSpeed and compare tokenizers.
        deep: also read every byte of the data sets.
    """
    found = machine_checks(config)
    if config:
        found += datasets.checks(config, deep)
    return [*found, *slurm.checks(), *(heavy.checks(config) if full else [])]


def _folder(config: Config | None) -> Path:
    return config.run.dir if config else Path.cwd()
