"""`maskwright launch hosts`: train on several machines over ssh."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from launchers.commands.arguments import ConfigArgument, Overrides


def launch_hosts(
    config: ConfigArgument,
    overrides: Overrides = None,
    *,
    hostfile: Annotated[Path, typer.Option("--hostfile", "-H", help="file with lines of the form `HOST slots=N`")],
    nodes: Annotated[int, typer.Option(min=1, help="number of hosts, taken from the top of the file")],
    gpus_per_node: Annotated[int, typer.Option(min=1, help="training processes per host, one per GPU")] = 1,
    cpu: Annotated[bool, typer.Option("--cpu", help="train on CPU with gloo")] = False,
    check: Annotated[bool, typer.Option("--check", help="check the hosts, and start nothing")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the commands, and contact no host")] = False,
) -> None:
    """Train on several machines over ssh, without Slurm. Check first that all hosts have the same files and packages.

    The config, the data set, the run folder and this Python environment must have the same paths on every host. The run
    folder must be on shared storage. ssh must connect without a prompt. Environment variables for MLflow,
    NCCL and AWS are sent through the ssh connection, never on a command line. When this command ends, for any reason,
    the processes on the hosts end too. Run it again to resume.

    Exit code: 0 completed, 75 stopped on request (Ctrl-C, SIGTERM, `maskwright stop`), 1 failed.

    Examples:

        maskwright launch hosts configs/demo.yaml --hostfile configs/cluster/hosts --nodes 2 --dry-run run.dir=runs/two
        maskwright launch hosts run.yaml --hostfile hosts --nodes 2 --gpus-per-node 8 --check
        maskwright launch hosts run.yaml --hostfile hosts --nodes 2 --gpus-per-node 8 train.steps=2000
    """
    from launchers.hosts import HostsJob, check_hosts, read_hostfile, train_on_hosts
    from pretrain.config import load_config
    from pretrain.planning import check_start, print_warnings

    chosen = read_hostfile(hostfile, nodes, gpus_per_node)
    settings = load_config(config, overrides)
    processes = nodes * gpus_per_node
    print_warnings(check_start(settings, processes))
    run_dir = settings.run.dir.absolute()
    job = HostsJob(config.absolute(), overrides or [], run_dir, chosen, gpus_per_node, cpu)
    if dry_run:
        print("\n".join(shlex.join(job.ssh_command(host)) for host in chosen))
        return
    address, port = check_hosts(job)
    print(f"{nodes} hosts agree ({', '.join(chosen)}): {processes} processes, rank 0 at {address}", flush=True)
    if check:
        return
    sys.exit(train_on_hosts(job, address, port))
