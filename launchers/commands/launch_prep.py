"""`maskwright launch prep`: prepare data with Slurm job arrays."""

from typing import Annotated

import typer

from launchers.arguments import MEMORY_GB, MemoryOption, NamedFilters, PlanArgument, Trusted
from launchers.slurm import PrepArray, launch_array


def launch_prep(
    out: PlanArgument,
    cpus: Annotated[int, typer.Option(min=1, help="cores and worker processes of an array element")] = 4,
    tasks_per_job: Annotated[
        int | None, typer.Option(min=1, help="tasks of an array element; by default a few minutes of work")
    ] = None,
    filters: NamedFilters = None,
    yes: Trusted = False,
    memory_gb: MemoryOption = MEMORY_GB,
    job_name: Annotated[str | None, typer.Option(help="job name; by default the name of OUT")] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account")] = None,
    time: Annotated[str | None, typer.Option(help="time limit of each job, in sbatch's format")] = None,
    mem: Annotated[
        str | None, typer.Option(help="memory of each job, in sbatch's format; 1G per core is enough")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the job scripts and the sbatch commands, and do nothing else")
    ] = False,
) -> None:
    """Prepare data on Slurm: submit the incomplete tasks of a plan as job arrays, and a final job that merges them.

    First make the plan with `maskwright prep run --plan-only`. OUT, the inputs and this Python environment must be on
    storage that all nodes share. The merge job lists incomplete tasks; run the same command again to submit only those.
    Set other sbatch options with sbatch's environment variables, such as SBATCH_QOS.

    Examples:

        maskwright launch prep data/books --cpus 2 --dry-run
        maskwright launch prep data/books --cpus 8 --partition cpu --time 2:00:00
        maskwright launch prep data/books --cpus 8 --tasks-per-job 64 --dry-run
    """
    from pretrain.config import ClusterConfig

    cluster = ClusterConfig.model_construct(  # cpu: a worker process has one core
        cpu=True, job_name=job_name, partition=partition, account=account, time=time, mem=mem
    )
    array = PrepArray(out.absolute(), cpus, cluster, memory_gb, filters or [])
    launch_array(array, tasks_per_job, dry_run, yes)
