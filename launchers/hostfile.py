"""The hostfile of DeepSpeed's launcher, checked: the launcher itself runs on fewer nodes than asked without a word."""

from data_prep.errors import UserError


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
