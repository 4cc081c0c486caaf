"""Submission of a run, or of one run per seed: the script, and the config of each run in RUN/slurm/config.yaml."""

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import refuse_link, write_file
from data_prep.common.processes import module_command
from launchers.slurm import client
from launchers.slurm.batch_script import batch_script, cores_of, log_pattern
from pretrain.config import Config, ContainerConfig, as_yaml, load_config, save_config
from pretrain.run import RunFolder


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
    def log(self) -> str:
        """The log's path in sbatch's notation: %j is the job id, %a the seed, %% a percent sign."""
        name = "seed-%a/slurm/%j.log" if self.seeds else "slurm/%j.log"
        return self.config.cluster.output or log_pattern(self.config.run.dir, name)

    @property
    def runs(self) -> list[Config]:
        """The config of each run."""
        return [self.config] if self.seeds is None else [self._run(seed) for seed in self.seeds.values]

    def _run(self, seed: int) -> Config:
        run = self.config.run.model_copy(update={"dir": self.config.run.dir / f"seed-{seed}", "seed": seed})
        parent = self.config.track.parent or self.config.run.dir.name[:250]
        track = self.config.track.model_copy(update={"parent": parent})
        return self.config.model_copy(update={"run": run, "track": track})

    def render(self) -> str:
        """Render the batch script.

        Raises:
            UserError: as batch_script.
        """
        cluster, run = self.config.cluster, self.config.run.dir
        each = f'{shlex.quote(f"{run}/seed-")}"$SLURM_ARRAY_TASK_ID"/{RunFolder(Path()).job_config}'
        config = each if self.seeds else shlex.quote(str(RunFolder(run).job_config))
        # With spare nodes the supervisor continues without a lost node. Without them Slurm ends the job.
        options = ["--no-kill"] * (cluster.spare_nodes > 0)
        supervisor = module_command("launchers.slurm.supervisor", python=str(self.python))
        return batch_script(
            cluster.model_copy(update={"options": [*options, *cluster.options]}),
            purpose="A training run, written by `maskwright launch slurm`. It becomes launchers/slurm/supervisor.py.",
            options={
                "job-name": cluster.job_name or run.name,
                "comment": f"{client.COMMENT}{run}/seed-%a" if self.seeds else f"{client.COMMENT}{run}",
                "output": self.log,
                "array": self.seeds.text if self.seeds else None,
                "nodes": str(cluster.nodes + cluster.spare_nodes),
                "ntasks-per-node": str(cluster.gpus_per_node),
                "cpus-per-task": str(cores_of(cluster)),
                "gres": None if cluster.cpu else f"gpu:{cluster.gpus_per_node}",
            },
            python=self.python,
            working_dir=self.working_dir,
            command=f"exec {shlex.join(supervisor)} {config}",
        )

    def write(self) -> Path:
        """Write the script, and the config of each run. Later changes of the user's files have no effect.

        Raises:
            UserError: if a run folder cannot be written, or as `render`.
        """
        text, script = self.render(), RunFolder(self.config.run.dir).job_script
        try:
            for run in self.runs:
                folder = RunFolder(run.run.dir)
                refuse_link(folder.slurm).mkdir(parents=True, exist_ok=True)
                save_config(run, folder.job_config)
                if not folder.is_held():  # a stop request to an earlier run
                    folder.stop.unlink(missing_ok=True)
            script.parent.mkdir(parents=True, exist_ok=True)
            write_file(script, text.encode())
        except OSError as error:
            raise UserError(f"{error.filename} cannot be written ({error.strerror}): choose another run.dir") from None
        return script

    def submit(self) -> str:
        """Write the files and submit the job. Returns its id.

        Raises:
            UserError: as `write`, and if sbatch is missing or refuses the job.
        """
        return client.submit(self.write())


def submitted_config(path: Path) -> Config:
    """Read the config of a job, RUN/slurm/config.yaml. Raises UserError if it is missing or invalid."""
    return load_config(path)


def launch_run(config: Config, seeds: str | None, dry_run: bool) -> None:
    """Submit a run with the current folder and Python, or print what would be submitted.

    Args:
        seeds: seeds of a job array, as in `--seeds`.

    Raises:
        UserError: if the seeds are invalid, the container cannot access a path that it needs, or as Submission.submit.
    """
    submission = _prepare(config, seeds)
    if not dry_run:
        _report(submission, submission.submit())
        return
    print(submission.render(), end="")
    for run in submission.runs:
        print(f"\n# {RunFolder(run.run.dir).job_config}\n{as_yaml(run)}", end="")


def _report(submission: Submission, job_id: str) -> None:
    run = shlex.quote(str(submission.config.run.dir))
    print(f"Submitted job {job_id}.")
    print(f"  state   squeue --jobs {job_id}")
    if submission.seeds:
        print(f"  runs    {run}/seed-N, one a seed, each with its log in slurm/")
        print(f"  cancel  scancel {job_id}, or scancel {job_id}_N for one seed")
        return
    log = submission.log.replace("%j", job_id).replace("%%", "%")
    print(f"  log     tail -F {shlex.quote(log)}")
    print(f"  run     maskwright status {run}")
    print(f"  stop    maskwright stop {run}")


def _prepare(config: Config, seeds: str | None) -> Submission:
    array = Seeds.parse(seeds, client.max_array_size()) if seeds else None
    run = config.run.model_copy(update={"dir": config.run.dir.absolute()})
    # Not resolved: the python of a virtual environment is a link, and its location identifies the environment.
    python = Path(os.path.abspath(sys.executable))
    submission = Submission(config.model_copy(update={"run": run}), Path.cwd(), python, array)
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
