"""Node checks before a start. `python -m launchers.slurm.node_health JOB_JSON` checks one node; `ask` checks all."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_prep.errors import UserError, one_line
from launchers.slurm import client
from launchers.slurm.job_file import JobFile, read_job
from launchers.slurm.srun_step import python_command
from pretrain.planning import check_node

_AT_ONCE = 32
_LONGEST_PROBLEM = 200
_MARK = "maskwright node:"  # before the problems, on one line; nothing follows it if there are none


def ask(job: JobFile, hosts: Sequence[str]) -> dict[str, str]:
    """The problems by unhealthy host. Each host has a separate job step, so that it cannot delay the others."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda host: _ask_one(job, host), hosts))
    return {host: answer for host, answer in zip(hosts, answers, strict=True) if answer}


def _ask_one(job: JobFile, host: str) -> str | None:
    bare = job.model_copy(update={"container": None})
    step = client.srun(python_command(bare, "launchers.slurm.node_health", Path.cwd()), [host])
    code, said, errors = client.step_output(step, job.health_seconds)
    if code is None:
        return f"gave no answer within {job.health_seconds:g} s"
    answers = [line.removeprefix(_MARK).strip() for line in said.splitlines() if line.startswith(_MARK)]
    if not answers:
        last = (errors.strip().splitlines() or ["no words"])[-1]
        return f"could not be asked ({one_line(last, _LONGEST_PROBLEM)})"
    return one_line(answers[-1], _LONGEST_PROBLEM) or None


def problem_here(job: JobFile) -> str | None:
    """The problem of this node in a few words; None if a run can start on it."""
    findings = check_node(job.folder, 0 if job.cpu else job.processes_per_node, job.health_seconds / 2)
    return ", ".join(finding.value for finding in findings if finding.status == "fail") or None


def main(arguments: list[str]) -> int:
    """Print the problems of this node, for `ask`."""
    try:
        problem = problem_here(read_job(Path(arguments[0])))
    except UserError:
        problem = f"cannot read {arguments[0]}"
    print(_MARK, one_line(problem or ""), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
