"""The hostfile of DeepSpeed's launcher, checked: the launcher itself runs on fewer nodes than asked without a word."""

import re
from pathlib import Path

from data_prep.errors import UserError, working_directory
from data_prep.reading import read_text

_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s+slots=([0-9]{1,9})")  # no name that ssh could take for an option
_MAX_BYTES = 16 << 20
_SHOWN = 80  # characters of a line in a message


def read_hostfile(path: Path, nodes: int, processes: int) -> list[str]:
    """The first `nodes` hosts of a hostfile, each of which has slots for `processes` processes.

    Raises:
        UserError: naming the line that is no `HOST slots=N`, the host that is there twice or has too few slots, or
            saying that there are too few hosts.
    """
    lines = read_text(path, _MAX_BYTES, f"correct --hostfile{working_directory(path)}").splitlines()
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not (text := line.partition("#")[0].strip()):
            continue
        if not (match := _LINE.fullmatch(text)):
            raise UserError(
                f"{path} line {number}: {text[:_SHOWN]!r} is not of the form `HOST slots=N`. "
                "Write for example node1 slots=8."
            )
        if match[1] in slots:
            raise UserError(f"{path} line {number}: {match[1]} is there twice; give each host one line")
        slots[match[1]] = int(match[2])
    if len(slots) < nodes:
        named = ", ".join(slots) or "none"
        raise UserError(f"{path} has {len(slots)} hosts ({named}), and --nodes is {nodes}; add hosts, or lower --nodes")
    hosts = list(slots)[:nodes]
    for host in hosts:
        if slots[host] < processes:
            raise UserError(
                f"{path}: {host} has {slots[host]} slots, and --gpus-per-node is {processes}; "
                "give every host as many slots, or lower --gpus-per-node"
            )
    return hosts
