"""Slurm: its programs, its controller, and the settings that decide what happens to a run."""

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from launchers.doctor.commands import one_line
from launchers.doctor.finding import Check, Finding
from launchers.slurm import client

_LEAST_KILL_WAIT = 30
_GONE = ("down", "drain", "fail", "unk", "no_respond", "inval", "maint")


class Partition(NamedTuple):
    """A group of nodes of a partition that are in one state; `default` is marked by sinfo with a star."""

    name: str
    default: bool
    up: bool
    limit: str
    nodes: int
    state: str
    gres: str


def checks() -> list[Check]:
    """All of Slurm in one check: without programs or a controller, there is nothing else to look at."""
    return [Check("slurm", "slurm", _slurm, seconds=40)]


def judge_programs(missing: Sequence[str]) -> Finding:
    """The programs that launching needs."""
    if len(missing) == len(client.PROGRAMS):
        return Finding("programs", "skipped", "no Slurm on this machine")
    if missing:
        return Finding(
            "programs", "warn", f"no {', '.join(missing)}", "`maskwright launch slurm` needs them: log in elsewhere"
        )
    return Finding("programs", "ok", "all there")


def judge_controller(works: bool, text: str) -> Finding:
    """The answer of `scontrol ping`."""
    if works and " UP" in f" {text}":
        return Finding("controller", "ok", one_line(text))
    advice = "nothing can be submitted from here: ask for SLURM_CONF, or for the controller to be looked at"
    return Finding("controller", "warn", one_line(text) or "no answer", advice)


def judge_config(config: dict[str, str]) -> Iterator[Finding]:
    """Requeueing, the time to stop, and the size of arrays."""
    if config.get("JobRequeue") == "0":
        advice = "`maskwright launch slurm` asks for it by --requeue; scripts of your own must too"
        yield Finding("requeue", "warn", "only jobs that ask for it start again (JobRequeue=0)", advice)
    else:
        yield Finding("requeue", "ok", "jobs start again after a lost node (JobRequeue=1)")
    seconds = int(re.sub(r"\D.*", "", config.get("KillWait", "")) or 0)
    if seconds < _LEAST_KILL_WAIT:
        advice = "`scancel` leaves less than that for a checkpoint: end runs with `maskwright stop`"
        yield Finding("kill wait", "warn", f"{seconds} s from SIGTERM to SIGKILL", advice)
    else:
        yield Finding("kill wait", "ok", f"{seconds} s from SIGTERM to SIGKILL")
    if "MaxArraySize" in config:
        value = f"up to {int(config['MaxArraySize']) - 1:,} elements (MaxArraySize); more become several arrays"
        yield Finding("arrays", "ok", value)


def parse_partitions(text: str) -> list[Partition]:
    """Lines of sinfo's format `%P|%a|%l|%D|%T|%G`."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 5]
    return [Partition(p.rstrip("*"), p.endswith("*"), a == "up", t, int(n), s, g) for p, a, t, n, s, g in rows]


def judge_partition(groups: Sequence[Partition]) -> Finding:
    """One partition: nodes that could run something, and its time limit."""
    first = groups[0]
    nodes = sum(group.nodes for group in groups)
    gone = sum(
        group.nodes for group in groups if group.state.rstrip("*~#$@!%^-").startswith(_GONE) or "*" in group.state
    )
    gpus = sorted({group.gres for group in groups} - {"(null)"})
    value = f"{nodes - gone} of {nodes} nodes in service, limit {first.limit}"
    value += f", {' '.join(gpus)}" if gpus else ", no GPUs"
    name = f"partition {first.name}" + (" (default)" if first.default else "")
    if not first.up:
        return Finding(name, "warn", f"{value}, closed", "jobs wait until it is opened: choose another by --partition")
    if nodes and gone == nodes:
        return Finding(name, "warn", value, "no job starts there: choose another by --partition")
    return Finding(name, "ok", value)


def _slurm() -> Iterator[Finding]:
    missing = [program for program in client.PROGRAMS if not client.is_installed(program)]
    yield judge_programs(missing)
    if "scontrol" in missing:
        return
    ping = client.scontrol("ping")
    if not ping.works and "SLURM_CONF" not in os.environ and "SLURM_JOB_ID" not in os.environ:
        yield Finding("controller", "skipped", f"this machine belongs to no cluster: {one_line(ping.text, 100)}")
        return
    yield judge_controller(*ping)
    if not (settings := client.settings()):
        return
    yield from judge_config(settings)
    partitions: dict[str, list[Partition]] = {}
    answer = client.sinfo("%P|%a|%l|%D|%T|%G")
    for group in parse_partitions(answer.text if answer.works else ""):
        partitions.setdefault(group.name, []).append(group)
    yield from (judge_partition(groups) for groups in partitions.values())
