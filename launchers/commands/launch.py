"""`maskwright launch`: submit a run to a cluster."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from launchers.sbatch import submit
from launchers.slurm.job import Job
from launchers.slurm.script import Batch, log_of, render, write_script

launch_app = typer.Typer(help="Submit a run to a cluster.", no_args_is_help=True)

GPU_JOB_CORES = 4
"""Cores a process by default with a GPU: the training loop, its prefetch thread, NCCL and the tracker."""


@launch_app.callback()
def launch() -> None:
    """Submit a run to a cluster."""


@launch_app.command()
def slurm(
    config: Annotated[Path, typer.Argument(help="The run's YAML file.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to lay over the file's.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes to run on.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Training processes on each node, one a GPU.")] = 1,
    cpu: Annotated[bool, typer.Option("--cpu", help="Ask for no GPUs: the processes train on CPU (gloo).")] = False,
    cpus_per_process: Annotated[
        int | None, typer.Option(min=1, help=f"Cores for each process: {GPU_JOB_CORES} by default, 1 with --cpu.")
    ] = None,
    job_name: Annotated[str | None, typer.Option(help="By default the run folder's name.")] = None,
    partition: Annotated[str | None, typer.Option(help="As for sbatch.")] = None,
    account: Annotated[str | None, typer.Option(help="As for sbatch.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Time limit, as for sbatch: minutes, HH:MM:SS or D-HH:MM:SS.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Log file, as for sbatch; by default RUN/slurm/%j.log.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job script and do nothing else.")] = False,
) -> None:
    """Train on Slurm: write the job script into the run folder and submit it.

    The run folder, the config and this Python environment must be on storage that all nodes share. At the time limit
    the job saves a checkpoint and queues itself again until the run is complete. Any other sbatch option can be given
    through sbatch's environment variables, such as SBATCH_QOS or SBATCH_CONSTRAINT.

    Examples:

      maskwright launch slurm run.yaml --nodes 4 --gpus-per-node 8 --partition gpu --time 24:00:00

      maskwright launch slurm run.yaml --nodes 2 --gpus-per-node 8 --dry-run train.steps=2000

      maskwright launch slurm run.yaml --nodes 2 --gpus-per-node 1 --cpu
    """
    from pretrain.config import load_config
    from pretrain.data.sources import check_run

    settings = load_config(config, overrides)
    check_run(settings, nodes * gpus_per_node)
    run_dir = settings.run.dir.absolute()
    job = Job(
        config=config.absolute(),
        overrides=tuple(overrides or ()),
        run_dir=run_dir,
        python=Path(os.path.abspath(sys.executable)),
        nodes=nodes,
        processes_per_node=gpus_per_node,
        cpus_per_process=cpus_per_process or (1 if cpu else GPU_JOB_CORES),
        cpu=cpu,
    )
    batch = Batch(Path.cwd(), job_name or run_dir.name, output, partition, account, time)
    if dry_run:
        print(render(job, batch), end="")
        return
    job_id = submit(write_script(job, batch))
    log = log_of(job, batch).replace("%j", job_id).replace("%%", "%")
    print(f"Submitted job {job_id}.")
    print(f"  state   squeue --jobs {job_id}")
    print(f"  log     tail -F {shlex.quote(log)}")
    print(f"  run     maskwright status {shlex.quote(str(run_dir))}")
    print(f"  stop    maskwright stop {shlex.quote(str(run_dir))}")
