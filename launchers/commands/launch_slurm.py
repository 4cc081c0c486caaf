"""`maskwright launch slurm`: submit a run to Slurm."""

from pathlib import Path
from typing import Annotated

import typer

from launchers.arguments import ConfigArgument, Overrides
from launchers.slurm import launch_run


def launch_slurm(
    config: ConfigArgument,
    overrides: Overrides = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="MASKWRIGHT_PROFILE", help="YAML file with keys of cluster:; CONFIG wins"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the script and the config of the job, and submit nothing")
    ] = False,
    nodes: Annotated[int | None, typer.Option(help="nodes to train on")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="training processes on each node, one a GPU")] = None,
    cpu: Annotated[bool | None, typer.Option("--cpu", help="ask for no GPUs: train on CPU")] = None,
    time: Annotated[str | None, typer.Option(help="time limit: minutes, HH:MM:SS or D-HH:MM:SS")] = None,
    mem: Annotated[str | None, typer.Option(help="memory of each node, as for sbatch")] = None,
    partition: Annotated[str | None, typer.Option(help="as for sbatch")] = None,
    account: Annotated[str | None, typer.Option(help="as for sbatch")] = None,
    qos: Annotated[str | None, typer.Option(help="as for sbatch")] = None,
    job_name: Annotated[str | None, typer.Option(help="by default the run folder's name")] = None,
) -> None:
    """Train on Slurm: write the job script into the run folder and submit it.

    The run folder, the data and this Python environment must be on storage that all nodes share. Before the time limit
    the job saves a checkpoint and requeues itself, until the run is complete. The config is copied at submission: later
    changes of the file do not affect the job. The options after --dry-run are keys of the config's section `cluster:`;
    set its other keys with `cluster.KEY=VALUE`.

    Examples:

        maskwright launch slurm configs/demo.yaml run.dir=runs/two-nodes --nodes 2 --cpu --dry-run
        maskwright launch slurm run.yaml --nodes 4 --gpus-per-node 8 --partition gpu --time 24:00:00
        maskwright launch slurm run.yaml --profile site.yaml --nodes 2 --dry-run cluster.spare_nodes=1
        maskwright launch slurm run.yaml --gpus-per-node 8 run.dir=runs/seed-2 run.seed=2 track.parent=seeds
    """
    from pretrain.config_files import override_words
    from pretrain.planning import check_start, print_warnings
    from pretrain.resuming import load_to_start

    options = {"nodes": nodes, "gpus_per_node": gpus_per_node, "cpu": cpu, "time": time, "mem": mem}
    options |= {"partition": partition, "account": account, "qos": qos, "job_name": job_name}
    given = override_words({"cluster": {key: value for key, value in options.items() if value is not None}})
    settings, _ = load_to_start(config, [*(overrides or []), *given], profile)
    print_warnings(check_start(settings, settings.cluster.nodes * settings.cluster.gpus_per_node))
    launch_run(settings, dry_run)
