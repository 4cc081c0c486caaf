"""Checks of Slurm: programs, controller, and the settings for stopping and requeueing a run."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from data_prep.errors import one_line
from launchers.doctor.finding import Check
from launchers.slurm import client
from pretrain.planning import Finding, judge

_LEAST_KILL_WAIT = 30
_UNUSABLE = ("down", "drain", "fail", "unk", "no_respond", "inval", "maint")


class Partition(NamedTuple):
    """Nodes of a partition in the same state, from sinfo's format `%P|%a|%l|%D|%T|%G`."""

    name: str
    available: str
    limit: str
    nodes: int
    state: str
    gres: str

    @property
    def is_usable(self) -> bool:
        """Whether these nodes can run jobs. A star marks nodes that do not respond."""
        return not (self.state.startswith(_UNUSABLE) or "*" in self.state)


def checks() -> list[Check]:
    """All of Slurm in one check: without programs and a controller there is nothing else to check."""
    return [Check("slurm", "slurm", _slurm, seconds=40)]


def judge_programs(missing: Sequence[str]) -> Finding:
    """Judge the programs that `launch` needs."""
    if len(missing) == len(client.PROGRAMS):
        return Finding("programs", "skipped", "no Slurm on this machine")
    advice = "`maskwright launch slurm` needs them: use another login node"
    return judge("programs", f"no {', '.join(missing)}" if missing else "all found", (bool(missing), "warn", advice))


def judge_settings(settings: dict[str, str]) -> Iterator[Finding]:
    """Judge the requeue setting, and the time between SIGTERM and SIGKILL."""
    off = settings.get("JobRequeue") == "0"
    advice = "`maskwright launch slurm` asks for it by --requeue; scripts of your own must too"
    yield judge("requeue", f"JobRequeue={settings.get('JobRequeue', '1')}", (off, "warn", advice))
    seconds = int(re.sub(r"\D.*", "", settings.get("KillWait", "")) or 0)
    advice = "`scancel` leaves less than 30 s for a checkpoint: end runs with `maskwright stop`"
    value = f"{seconds} s from SIGTERM to SIGKILL"
    yield judge("kill wait", value, (seconds < _LEAST_KILL_WAIT, "warn", advice))


def parse_partitions(text: str) -> list[Partition]:
    """Parse the lines of sinfo. Invalid lines are skipped."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 5]
    return [Partition(a, b, c, int(n), d, e) for a, b, c, n, d, e in rows if n.isdecimal()]


def judge_partition(groups: Sequence[Partition]) -> Finding:
    """Judge one partition: its usable nodes and its time limit."""
    first = groups[0]
    nodes, usable = (sum(group.nodes for group in these) for these in (groups, [g for g in groups if g.is_usable]))
    gpus = " ".join(sorted({group.gres for group in groups} - {"(null)"})) or "no GPUs"
    return judge(
        f"partition {first.name.rstrip('*')}" + (" (default)" if first.name.endswith("*") else ""),
        f"{usable} of {nodes} nodes in service, limit {first.limit}, {gpus}",
        (first.available != "up", "warn", "it is closed, so jobs wait: choose another by --partition"),
        (usable == 0 < nodes, "warn", "no job starts there: choose another by --partition"),
    )


def _slurm() -> Iterator[Finding]:
    missing = [program for program in client.PROGRAMS if not client.is_installed(program)]
    yield judge_programs(missing)
    if "scontrol" in missing:
        return
    ping = client.scontrol("ping")
    if not ping.works and "SLURM_CONF" not in os.environ and "SLURM_JOB_ID" not in os.environ:
        yield Finding("controller", "skipped", f"this machine belongs to no cluster: {one_line(ping.text, 100)}")
        return
    is_up = ping.works and " UP" in f" {ping.text}"
    advice = "nothing can be submitted from here: set SLURM_CONF, or ask the administrator"
    yield judge("controller", one_line(ping.text, 200) or "no answer", (not is_up, "warn", advice))
    if settings := client.settings():
        yield from judge_settings(settings)
        groups = sorted(parse_partitions(client.sinfo("%P|%a|%l|%D|%T|%G").text))
        for _, partition in groupby(groups, key=lambda group: group.name):
            yield judge_partition(list(partition))
