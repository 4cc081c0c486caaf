"""List of the checks of a machine and, with a config, of its run."""

from collections.abc import Iterator
from pathlib import Path

from data_prep.errors import UserError
from data_prep.folder_kinds import is_run
from data_prep.urls import is_url
from launchers.doctor import file_system_checks, full_checks, gpu_checks, package_checks, slurm_checks, tracking_checks
from launchers.doctor import machine_checks as machine
from launchers.doctor.finding import Check
from pretrain.config import Config
from pretrain.config.run import TrackConfig
from pretrain.planning import Finding, judge
from pretrain.planning.preflight import CHECKS
from pretrain.reporting import RunSummary, summarize


def machine_checks(config: Config | None) -> list[Check]:
    """The checks whose result can differ between nodes. All are fast and do not import torch."""
    found = [
        *package_checks.checks(config),
        *machine.checks(),
        *gpu_checks.checks(config.train.precision if config else None),
    ]
    if config is None:
        return [
            *found,
            *file_system_checks.write_checks("working folder", Path.cwd()),
            *tracking_checks.checks(TrackConfig()),
        ]
    found += file_system_checks.write_checks("run folder", config.run.dir)
    places = _data_sets(config)
    for name, location in places.items():
        if not is_url(location):
            found += file_system_checks.read_checks(name, Path(location))
    if config.data.cache_dir and any(map(is_url, places.values())):
        found += file_system_checks.write_checks("data.cache_dir", config.data.cache_dir)
    return [*found, *tracking_checks.checks(config.track)]


def all_checks(config: Config | None, full: bool = False) -> list[Check]:
    """All checks of one machine. `full` also imports torch and DeepSpeed, and runs a kernel."""
    found = machine_checks(config) + (run_checks_of(config) if config else [])
    return [*found, *slurm_checks.checks(), *(full_checks.checks() if full else [])]


def run_checks_of(config: Config) -> list[Check]:
    """The preflight checks of a run, and the state of the run in its folder."""
    return [Check("run", "preflight", lambda: _preflight(config), seconds=120)]


def judge_run(summary: RunSummary) -> Finding:
    """The state of a started run."""
    last = summary.last_checkpoint
    saved = f"; last checkpoint: step {last.step:,}{f', {last.problem}' if last.problem else ''}" if last else ""
    return judge(
        "state",
        f"{summary.state}: {summary.reason}{saved}",
        (summary.state in ("starting", "running"), "warn", "it is training now; a second start is refused"),
        (last is not None and last.problem is not None, "warn", "the run resumes from an older checkpoint"),
    )


def _preflight(config: Config) -> Iterator[Finding]:
    if is_run(config.run.dir):
        yield judge_run(summarize(config.run.dir))
    for check in CHECKS:
        try:
            check.run(config, 1)
        except UserError as error:
            yield Finding(check.name, "fail", str(error))
        else:
            yield Finding(check.name, "ok", check.sound)


def _data_sets(config: Config) -> dict[str, str]:
    """The location of each data set of a run, by its name in the config."""
    sources = config.data.train
    found = {"data.train" if len(sources) == 1 else f"data.train.{n}": one.path for n, one in enumerate(sources)}
    return found | ({} if config.data.valid is None else {"data.valid": config.data.valid})
