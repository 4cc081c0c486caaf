"""One srun over the hosts of an attempt: started, watched, and ended when its ranks do not end by themselves."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launchers.slurm import client
from launchers.slurm.job import Job

_POLL_SECONDS = 0.5


def on_nodes(job: Job, module: str, working_dir: Path) -> list[str]:
    """The end of an srun command that runs `python -m MODULE JOB_JSON`; the container's options are pyxis'.

    --export=ALL: a job that was submitted with --export=NONE would else start its tasks without any environment.
    """
    words, python = ["--export=ALL"], str(job.python)
    if job.container:
        python = job.container.python
        words += [f"--container-image={job.container.image}", f"--container-workdir={working_dir}"]
        if job.container.mounts:
            words.append(f"--container-mounts={','.join(job.container.mounts)}")
    return [*words, python, "-m", module, str(job.path)]


def command(job: Job, hosts: Sequence[str]) -> list[str]:
    """srun, once a node; `--wait`: when one node's task has ended, well or badly, the others are killed after 60 s."""
    node = on_nodes(job, "launchers.slurm.node", Path.cwd())
    return client.srun(node, hosts, 1, int(os.environ["SLURM_CPUS_PER_TASK"]), ["--wait=60"])


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
    srun = client.start_step(words, environment)
    while True:
        try:
            return srun.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if is_too_late():
                return None
            if is_overdue():
                client.end_step(srun)
                return None
