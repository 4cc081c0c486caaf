"""The hostfile of DeepSpeed's launcher, checked: the launcher itself runs on fewer nodes than asked without a word.

A job script uses it as `scontrol show hostnames | python -m launchers.hostfile PATH NODES SLOTS`.
"""

import sys
from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import atomic_writer


def format_hostfile(hosts: list[str], nodes: int, slots: int) -> str:
    """The hostfile for one process on each of `slots` slots of `nodes` hosts: lines of `HOST slots=N`, in rank order.

    Raises:
        UserError: when `hosts` does not hold `nodes` different names.
    """
    if len(set(hosts)) != len(hosts):
        repeated = sorted({host for host in hosts if hosts.count(host) > 1})
        raise UserError(f"the job's host list names {', '.join(repeated)} more than once; each node may appear once")
    if len(hosts) != nodes:
        raise UserError(
            f"the job was to run on {nodes} nodes but its host list has {len(hosts)} ({', '.join(hosts) or 'none'}): "
            "submit it again with --nodes equal to the nodes that Slurm grants"
        )
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def main(arguments: list[str]) -> int:
    """Read host names from standard input and write the hostfile; 1 and one sentence when the count is wrong."""
    path, nodes, slots = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    try:
        text = format_hostfile(sys.stdin.read().split(), nodes, slots)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with atomic_writer(path) as file:
        file.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
