"""What Slurm says of this job, and how the job is queued again; through scontrol."""

import os
import re
import subprocess
import time
from collections.abc import Sequence

from launchers.slurm.verdict import Ending

_KILL_WAIT = 30.0  # Slurm's default
_TRIES = 20  # to exclude a node: a tenth of a second apart, within Slurm's KillWait


def granted_hosts() -> list[str]:
    """The allocation's host names, in the order of SLURM_NODEID."""
    return _scontrol("show", "hostnames", os.environ["SLURM_JOB_NODELIST"])[1].split()


def own_name() -> str:
    """What scontrol calls this job: an element of an array by its place in it.

    One element has the number of the whole array, by which scontrol would mean all of them.
    """
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def own_fields() -> dict[str, str]:
    """What `scontrol show job` says of this job; nothing if the controller does not answer."""
    return dict(re.findall(r"(\w+)=(\S*)", _scontrol("--oneliner", "show", "job", own_name())[1]))


def ending_of(fields: dict[str, str]) -> Ending:
    """Whether Slurm ends the job already, and why."""
    if fields.get("JobState", "RUNNING") == "RUNNING":
        return "no"
    return "limit" if fields.get("Reason") == "TimeLimit" else "other"


def kill_wait() -> float:
    """Seconds from Slurm's SIGTERM to its SIGKILL."""
    found = re.search(r"^KillWait\s*=\s*(\d+)", _scontrol("show", "config")[1], re.MULTILINE)
    return float(found[1]) if found else _KILL_WAIT


def requeue(exclude: Sequence[str]) -> str | None:
    """Queue this job again, not on these nodes; the reason if it cannot be.

    Slurm then ends this start of the job with SIGTERM, and after KillWait with SIGKILL.
    """
    name, before = own_name(), own_fields().get("ExcNodeList", "(null)")
    code, said = _scontrol("requeue", name)
    if code:
        return said.strip() or "scontrol failed"
    if exclude:
        nodes = ",".join(([] if before == "(null)" else [before]) + list(exclude))
        for _ in range(_TRIES):  # only a pending job can be changed
            code, said = _scontrol("update", f"JobId={name}", f"ExcNodeList={nodes}")
            if not code:
                return None
            time.sleep(0.1)
        print(f"warning: {', '.join(exclude)} cannot be excluded ({said.strip()})", flush=True)
    return None


def _scontrol(*arguments: str) -> tuple[int, str]:
    try:
        result = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return 1, ""
    return result.returncode, result.stdout or result.stderr
