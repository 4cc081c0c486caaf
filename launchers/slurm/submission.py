"""What is handed to Slurm: one run of a config, or one for each seed, with all that they need in the run folder."""

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
"""Cores a process by default with a GPU: the training loop, its prefetch thread, NCCL and the tracker."""


@dataclass(frozen=True)
class Seeds:
    """`text` is what sbatch's --array takes: `1,2,5-8`, and `%2` after it for two jobs at a time."""

    text: str
    values: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, max_array_size: int) -> "Seeds":
        """Read `--seeds`.

        Raises:
            UserError: for another form, a seed that is there twice, and one that is no index of an array here.
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
    """Paths are absolute, and on storage that all nodes share. With `seeds`, `config.run.dir` holds a run for each."""

    config: Config
    working_dir: Path
    python: Path
    seeds: Seeds | None = None

    @property
    def cluster(self) -> ClusterConfig:
        """Where and how to run."""
        return self.config.cluster

    @property
    def folder(self) -> Path:
        """Where the job script is kept."""
        return self.config.run.dir / "slurm"

    @property
    def script(self) -> Path:
        """The job script."""
        return self.folder / "job.sh"

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
        """What each run's job reads."""
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
                "config": run.run.dir / "slurm" / "config.yaml",
                "run_dir": run.run.dir,
                "python": self.python,
                "processes_per_node": cluster.gpus_per_node,
                "cpus_per_process": cores_of(cluster),
            }
        )

    def write(self, script: str) -> Path:
        """Write the script, and for each run its config and job.json: a job that waits trains what was submitted.

        Raises:
            UserError: when a run folder cannot be written.
        """
        for run, job in zip(self.runs, self.jobs, strict=True):
            job.write()
            save_config(run, job.config)
            folder = RunFolder(job.run_dir)
            if not folder.is_held():  # a request to stop what ran here before
                folder.stop.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self.script) as file:
            file.write(script.encode())
        return self.script


def cores_of(cluster: ClusterConfig) -> int:
    """Cores of each training process."""
    return cluster.cpus_per_process or (1 if cluster.cpu else GPU_JOB_CORES)


def prepare(config: Config, seeds: Seeds | None = None) -> Submission:
    """The submission of a config from this folder, with this Python.

    Raises:
        UserError: when the container would not see what it needs.
    """
    run = config.run.model_copy(update={"dir": config.run.dir.absolute()})
    # Not resolved: a virtual environment's python is a link, and is known by the link's place.
    python = Path(os.path.abspath(sys.executable))
    submission = Submission(config.model_copy(update={"run": run}), Path.cwd(), python, seeds)
    if config.cluster.container:
        check_mounts(config.cluster.container, [run.dir, submission.working_dir])
    return submission


def check_mounts(container: ContainerConfig, paths: list[Path]) -> None:
    """Refuse a container that does not see these paths where they are outside."""
    ends = [mount.split(":")[:2] for mount in container.mounts]
    same = [Path(end[0]) for end in ends if Path(end[0]) == Path(end[-1])]
    for path in paths:
        if not any(path.is_relative_to(mount) for mount in same):
            raise UserError(
                f"the container would not see {path}, which it needs at the same place: add a mount such as "
                f"{path}:{path} to cluster.container.mounts"
            )
