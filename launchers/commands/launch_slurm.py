"""`maskwright launch slurm`: submit a run to Slurm."""

from pathlib import Path
from typing import Annotated, Any

import typer

from launchers.commands.arguments import ConfigArgument, Overrides
from launchers.commands.cluster_options import with_cluster_options
from launchers.slurm import launch_run


@with_cluster_options
def launch_slurm(
    *,
    config: ConfigArgument,
    overrides: Overrides = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="MASKWRIGHT_PROFILE",
            help="YAML file with keys of cluster:; CONFIG wins",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="1,2,5-8[%2]", help="job array with a run in RUN/seed-N for each seed"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the script and the configs of the job, and submit nothing")
    ] = False,
    options: dict[str, Any],
) -> None:
    """Train on Slurm: write the job script into the run folder and submit it.

    The run folder, the data and this Python environment must be on storage that all nodes share. Before the time limit
    the job saves a checkpoint and requeues itself, until the run is complete. The config is copied at submission: later
    changes of the file do not affect the job. Each option below is also a key of the config's `cluster:` section.

    Examples:

        maskwright launch slurm configs/demo.yaml run.dir=runs/two-nodes --nodes 2 --cpu --dry-run
        maskwright launch slurm run.yaml --nodes 4 --gpus-per-node 8 --partition gpu --time 24:00:00
        maskwright launch slurm run.yaml --profile site.yaml --nodes 2 --dry-run train.steps=2000
        maskwright launch slurm run.yaml --gpus-per-node 8 --seeds 1-5
    """
    from pretrain.config import load_config
    from pretrain.planning import check_start, print_warnings

    settings = load_config(config, overrides, profile, options)
    print_warnings(check_start(settings, settings.cluster.nodes * settings.cluster.gpus_per_node))
    launch_run(settings, seeds, dry_run)
