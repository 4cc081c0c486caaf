"""Entry point of a rank on Slurm: `srun python -m launchers.slurm.node_entry CONFIG` becomes `pretrain.train`."""

import os
import sys
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.processes import module_command
from launchers.local import rank_variables
from launchers.slurm.launch_attempt import HOSTS_VARIABLE, PORT_VARIABLE
from pretrain.config_files import load_config
from pretrain.distributed import interface_to
from pretrain.run import report_failure


def main(arguments: list[str]) -> int:
    """Become the training process. If this node cannot train, print one line and return 1."""
    host, local_rank = os.environ["SLURMD_NODENAME"], int(os.environ["SLURM_LOCALID"])
    hosts = os.environ[HOSTS_VARIABLE].split()
    node = hosts.index(host)
    path = Path(arguments[0])
    other = (hosts[0] if node else hosts[-1]) if len(hosts) > 1 else "127.0.0.1"
    try:
        cluster = load_config(path).cluster
        interface = cluster.interface or interface_to(other)
    except UserError as error:
        report_failure(None, str(error), retry=False)
        return 1
    os.environ |= rank_variables(
        local_rank, cluster.gpus_per_node, node, len(hosts), hosts[0], os.environ[PORT_VARIABLE]
    )
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if cluster.interface or name not in os.environ:  # keeps a value that the user has set
            os.environ[name] = interface
    if local_rank == 0:
        print(f"node {node}: {host}, interface {os.environ['GLOO_SOCKET_IFNAME']}", flush=True)
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.execv(sys.executable, module_command("pretrain.train", "--config", str(path)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
