"""Findings about Slurm for the doctor: its programs, its controller, and the time that it leaves a run to stop."""

import os
from collections.abc import Iterator, Sequence

from data_prep.common.errors import one_line
from launchers.local import Finding, judge
from launchers.slurm import client

_LEAST_KILL_WAIT = 30


def check_slurm() -> Iterator[Finding]:
    """Check Slurm. Without programs and a controller there is nothing else to check."""
    missing = client.missing_programs()
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
    if is_up:
        yield judge_kill_wait(client.kill_wait())


def judge_programs(missing: Sequence[str]) -> Finding:
    """Judge the programs that `launch` needs."""
    if len(missing) == len(client.PROGRAMS):
        return Finding("programs", "skipped", "no Slurm on this machine")
    advice = "`maskwright launch slurm` needs them: use another login node"
    return judge("programs", f"no {', '.join(missing)}" if missing else "all found", (bool(missing), "warn", advice))


def judge_kill_wait(seconds: float) -> Finding:
    """Judge the time between SIGTERM and SIGKILL."""
    advice = "`scancel` leaves less than 30 s for a checkpoint: end runs with `maskwright stop`"
    value = f"{seconds:g} s from SIGTERM to SIGKILL"
    return judge("kill wait", value, (seconds < _LEAST_KILL_WAIT, "warn", advice))
