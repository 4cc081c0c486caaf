"""Submission of a run, or of one run per seed: script, configs and job.json files in the run folder."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from launchers.slurm.job_file import JobFile
from launchers.slurm.script_template import log_pattern
from pretrain.config import ClusterConfig, Config, ContainerConfig, save_config
from pretrain.run import RunFolder

GPU_JOB_CORES = 4
"""Default cores per process with a GPU: for the training loop, its prefetch thread, NCCL and the tracker."""


@dataclass(frozen=True)
class Seeds:
    """Seeds of a job array. `text` has the format of sbatch's --array: `1,2,5-8`; append `%2` for two at a time."""

    text: str
    values: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, max_array_size: int) -> "Seeds":
        """Read `--seeds`.

        Raises:
            UserError: for another format, a repeated seed, and a seed that is not a valid array index on this cluster.
        """
        if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*(%[1-9]\d*)?", text, re.ASCII):
            raise UserError(f"--seeds {text!r} is not of the form 1,2,5-8, with %2 after it for two jobs at a time")
        ranges = [[int(end) for end in part.split("-")] for part in text.partition("%")[0].split(",")]
        largest = max(max(ends) for ends in ranges)
        if largest >= max_array_size:
            raise UserError(
                f"--seeds: {largest} is too large, as seeds are the indices of a job array, which go up to "
                f"{max_array_size - 1} on this cluster"
            )
        values = [seed for ends in ranges for seed in range(ends[0], ends[-1] + 1)]
        if len(set(values)) != len(values) or any(ends[0] > ends[-1] for ends in ranges):
            raise UserError(f"--seeds {text}: give each seed once, and ranges from the lower to the higher")
        return cls(text, tuple(values))


@dataclass(frozen=True)
class Submission:
    """A run to submit. Paths are absolute and on shared storage. With `seeds`, `config.run.dir` holds a run each."""

    config: Config
    working_dir: Path
    python: Path
    seeds: Seeds | None = None

    @property
    def cluster(self) -> ClusterConfig:
        """Config section `cluster`."""
        return self.config.cluster

    @property
    def folder(self) -> Path:
        """Folder of the job script."""
        return RunFolder(self.config.run.dir).slurm

    @property
    def script(self) -> Path:
        """Path of the job script."""
        return RunFolder(self.config.run.dir).job_script

    @property
    def log(self) -> str:
        """The log's path in sbatch's notation: %j is the job id, %a the seed, %% a percent sign."""
        name = "seed-%a/slurm/%j.log" if self.seeds else "slurm/%j.log"
        return self.cluster.output or log_pattern(self.config.run.dir, name)

    @property
    def runs(self) -> list[Config]:
        """The config of each run."""
        return [self.config] if self.seeds is None else [self._run(seed) for seed in self.seeds.values]

    @property
    def jobs(self) -> list[JobFile]:
        """The description (job.json) of each run's job."""
        return [self._job(run) for run in self.runs]

    def _run(self, seed: int) -> Config:
        run = self.config.run.model_copy(update={"dir": self.config.run.dir / f"seed-{seed}", "seed": seed})
        parent = self.config.track.parent or self.config.run.dir.name[:250]
        track = self.config.track.model_copy(update={"parent": parent})
        return self.config.model_copy(update={"run": run, "track": track})

    def _job(self, run: Config) -> JobFile:
        cluster = self.cluster
        shared = {name: value for name, value in cluster if name in JobFile.model_fields}
        return JobFile(
            **shared
            | {
                "config": RunFolder(run.run.dir).job_config,
                "run_dir": run.run.dir,
                "python": self.python,
                "processes_per_node": cluster.gpus_per_node,
                "cpus_per_process": cores_of(cluster),
            }
        )

    def write(self, script: str) -> Path:
        """Write the script, and for each run its config and job.json. Later changes of the user's files have no effect.

        Raises:
            UserError: if a run folder cannot be written.
        """
        for run, job in zip(self.runs, self.jobs, strict=True):
            job.write()
            save_config(run, job.config)
            folder = RunFolder(job.run_dir)
            if not folder.is_held():  # a stop request to an earlier run
                folder.stop.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self.script) as file:
            file.write(script.encode())
        return self.script


def cores_of(cluster: ClusterConfig) -> int:
    """Cores of each training process."""
    return cluster.cpus_per_process or (1 if cluster.cpu else GPU_JOB_CORES)


def prepare(config: Config, seeds: Seeds | None = None) -> Submission:
    """Prepare the submission of a config with the current folder and Python.

    Raises:
        UserError: if the container cannot access a path that it needs.
    """
    run = config.run.model_copy(update={"dir": config.run.dir.absolute()})
    # Not resolved: the python of a virtual environment is a link, and its location identifies the environment.
    python = Path(os.path.abspath(sys.executable))
    submission = Submission(config.model_copy(update={"run": run}), Path.cwd(), python, seeds)
    if config.cluster.container:
        check_mounts(config.cluster.container, [run.dir, submission.working_dir])
    return submission


def check_mounts(container: ContainerConfig, paths: list[Path]) -> None:
    """Raise UserError if the container does not mount these paths at the same place."""
    ends = [mount.split(":")[:2] for mount in container.mounts]
    same = [Path(end[0]) for end in ends if Path(end[0]) == Path(end[-1])]
    for path in paths:
        if not any(path.is_relative_to(mount) for mount in same):
            raise UserError(
                f"the container cannot access {path}, which it needs at the same path: add a mount such as "
                f"{path}:{path} to cluster.container.mounts"
            )
