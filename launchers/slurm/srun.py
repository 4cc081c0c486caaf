"""One srun over the hosts of an attempt: started, watched, and ended when its ranks do not end by themselves."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launchers.slurm.job import Job
from launchers.slurm.step import on_nodes
from pretrain.signals import die_with_parent

_POLL_SECONDS = 0.5
_END_SECONDS = 20.0  # for srun to end its tasks after SIGTERM


def command(job: Job, hosts: Sequence[str]) -> list[str]:
    """srun, once a node; `--wait`: when one node's task has ended, well or badly, the others are killed after 60 s."""
    step = ["srun", "--overlap", f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--ntasks-per-node=1"]
    step += [f"--nodelist={','.join(hosts)}", f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}"]
    return [*step, "--wait=60", "--kill-on-bad-exit=0", *on_nodes(job, "launchers.slurm.node", Path.cwd())]


def run(
    words: Sequence[str],
    environment: Mapping[str, str],
    is_overdue: Callable[[], bool],
    is_too_late: Callable[[], bool],
) -> int | None:
    """srun's exit code; None if it was still running.

    Args:
        is_overdue: whether srun should have ended; it is then ended.
        is_too_late: whether Slurm ends everything anyhow; srun is then left to it.
    """
    # In a session of its own: what is sent to the supervisor's is not meant for srun, which would kill the ranks.
    srun = subprocess.Popen(
        words, env=environment, start_new_session=True, preexec_fn=lambda: die_with_parent(signal.SIGTERM)
    )
    while True:
        try:
            return srun.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if is_too_late():
                return None
            if is_overdue():
                _end(srun)
                return None


def _end(srun: "subprocess.Popen[bytes]") -> None:
    """Have srun kill its tasks, as far as their nodes answer."""
    srun.terminate()
    try:
        srun.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        srun.kill()
        srun.wait()
