"""Submission of a run: the script, and the config of the job in RUN/slurm/config.yaml."""

import shlex
import sys
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import refuse_link, write_file
from data_prep.common.processes import module_command
from launchers.slurm import client
from launchers.slurm.batch_script import batch_script, cores_of, log_pattern
from pretrain.config import Config
from pretrain.config_files import as_yaml, save_config
from pretrain.run import COMMAND_VARIABLE, RunFolder


def render(config: Config) -> str:
    """Render the batch script of a run, whose folder is absolute and on shared storage.

    Raises UserError as batch_script.
    """
    cluster, run = config.cluster, config.run.dir
    # With spare nodes the supervisor continues without a lost node. Without them Slurm ends the job.
    options = ["--no-kill"] * (cluster.spare_nodes > 0)
    supervisor = module_command("launchers.slurm.supervisor", str(RunFolder(run).job_config))
    return batch_script(
        cluster.model_copy(update={"options": [*options, *cluster.options]}),
        purpose="A training run, written by `maskwright launch slurm`. It becomes launchers/slurm/supervisor.py.",
        options={
            "job-name": cluster.job_name or run.name,
            "comment": f"{client.COMMENT}{run}",
            "output": log_pattern(run, "slurm/%j.log"),
            "nodes": str(cluster.nodes + cluster.spare_nodes),
            "ntasks-per-node": str(cluster.gpus_per_node),
            "cpus-per-task": str(cores_of(cluster)),
            "gres": None if cluster.cpu else f"gpu:{cluster.gpus_per_node}",
        },
        command=f"exec {shlex.join(supervisor)}",
    )


def write(config: Config) -> Path:
    """Write the script, whose path it returns, and the config. Later changes of the user's files have no effect.

    Raises UserError if the run folder cannot be written, or as `render`.
    """
    text, folder = render(config), RunFolder(config.run.dir)
    try:
        refuse_link(folder.slurm).mkdir(parents=True, exist_ok=True)
        save_config(config, folder.job_config)
        if not folder.is_held():  # a stop request to an earlier run
            folder.stop.unlink(missing_ok=True)
        write_file(folder.job_script, text.encode())
    except OSError as error:
        raise UserError(f"{error.filename} cannot be written ({error.strerror}): choose another run.dir") from None
    return folder.job_script


def launch_run(config: Config, dry_run: bool) -> None:
    """Submit a run with the current folder and Python, or print what would be submitted.

    Raises UserError if the container cannot access a path that it needs, a job of the run waits or runs, sbatch is
    missing or refuses the job, or as `write`.
    """
    run = config.run.dir.absolute()
    config = config.model_copy(update={"run": config.run.model_copy(update={"dir": run})})
    if config.cluster.container:
        check_mounts(config.cluster.container.mounts, [run, Path.cwd()])
    if dry_run:
        print(f"{render(config)}\n# {RunFolder(run).job_config}\n{as_yaml(config)}", end="")
        return
    _refuse_second_job(RunFolder(run))
    typed = shlex.join(["maskwright", *sys.argv[1:]])
    job_id = client.submit(write(config), variables={COMMAND_VARIABLE: typed})
    print(f"Submitted job {job_id}.")
    print(f"  state   squeue --jobs {job_id}")
    print(f"  log     tail -F {shlex.quote(f'{run}/slurm/{job_id}.log')}")
    print(f"  run     maskwright status {shlex.quote(str(run))}")
    print(f"  stop    maskwright stop {shlex.quote(str(run))}")


def _refuse_second_job(folder: RunFolder) -> None:
    """Raise UserError if a job of the run waits or runs: at each start it reads the files that `write` replaces."""
    jobs, problem = client.own_jobs() if folder.job_config.exists() else ([], None)
    if problem:
        raise UserError(f"Cannot find out whether a job of {folder.path} waits or runs: {problem}")
    if ids := ", ".join(job.id for job in jobs if job.trains(folder.path)):
        raise UserError(
            f"Job {ids} of {folder.path} waits or runs, and reads {folder.job_config} at each start. Wait for it, or "
            f"end it with `maskwright stop {shlex.quote(str(folder.path))}`. Then give the command again."
        )


def check_mounts(mounts: list[str], paths: list[Path]) -> None:
    """Raise UserError if `cluster.container.mounts` does not have these paths at the same place."""
    ends = [mount.split(":")[:2] for mount in mounts]
    same = [Path(end[0]) for end in ends if Path(end[0]) == Path(end[-1])]
    for path in paths:
        if not any(path.is_relative_to(mount) for mount in same):
            raise UserError(
                f"the container cannot access {path}, which it needs at the same path: add a mount such as "
                f"{path}:{path} to cluster.container.mounts"
            )
