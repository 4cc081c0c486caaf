"""`maskwright launch hosts`: train on machines that one reaches by ssh."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def launch_hosts(
    config: Annotated[Path, typer.Argument(help="The run's YAML file.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to lay over the file's.")
    ] = None,
    hostfile: Annotated[
        Path, typer.Option("--hostfile", "-H", help="Lines of `HOST slots=N`.", show_default=False)
    ] = ...,  # type: ignore[assignment]
    nodes: Annotated[int, typer.Option(min=1, help="Hosts to train on, the first of the file.")] = ...,  # type: ignore[assignment]
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Training processes on each host, one a GPU.")] = 1,
    cpu: Annotated[bool, typer.Option("--cpu", help="Train on CPU, over gloo.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Ask the hosts, and start nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands; reach no host.")] = False,
) -> None:
    """Train on several machines, without Slurm: check that they agree, then start the processes over ssh.

    The config, the data set, the run folder and this Python environment must be on every host at the same paths, the
    run folder on shared storage. Ssh must reach each host without a question. The environment variables of MLflow,
    NCCL, AWS and their like go to the hosts inside the ssh connection, never on a command line. When this command ends,
    for whatever reason, the processes on the hosts do too; run it again to go on.

    Exit code: 0 completed, 75 stopped on request (Ctrl-C, SIGTERM, `maskwright stop`), 1 failed.

    Examples:

      maskwright launch hosts run.yaml --hostfile hosts --nodes 2 --gpus-per-node 8 --check

      maskwright launch hosts run.yaml --hostfile hosts --nodes 2 --gpus-per-node 8 train.steps=2000
    """
    from launchers.hosts import HostsJob, check_hosts, read_hostfile, ssh_command, start_over_ssh
    from launchers.local import supervise
    from pretrain.config import load_config
    from pretrain.planning import check_start
    from pretrain.run import RunFolder

    chosen = read_hostfile(hostfile, nodes, gpus_per_node)
    settings = load_config(config, overrides)
    check_start(settings, nodes * gpus_per_node)
    job = HostsJob(
        config=config.absolute(),
        overrides=overrides or [],
        run_dir=settings.run.dir.absolute(),
        hosts=chosen,
        processes=gpus_per_node,
        cpu=cpu,
        working_dir=Path.cwd(),
        python=Path(os.path.abspath(sys.executable)),
        python_path=os.environ.get("PYTHONPATH", ""),
    )
    if dry_run:
        print("\n".join(shlex.join(ssh_command(job, host, "launchers.hosts.host_entry")) for host in chosen))
        return
    address, port = check_hosts(job)
    processes = nodes * gpus_per_node
    print(f"{nodes} hosts agree ({', '.join(chosen)}): {processes} processes, rank 0 at {address}", flush=True)
    if check:
        return
    sys.exit(supervise(RunFolder(job.run_dir), lambda stop: start_over_ssh(job, address, port, stop)))
