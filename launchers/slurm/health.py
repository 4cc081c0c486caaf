"""Is a node fit to train? `python -m launchers.slurm.health JOB_JSON` says so on the node; `ask` asks all of them."""

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError, one_line
from data_prep.reading import parse_json
from launchers.slurm import client
from launchers.slurm.job import Job, read_job
from launchers.slurm.srun import python_command
from pretrain.node_checks import check_node

_AT_ONCE = 32
_LONGEST_PROBLEM = 200


@dataclass(frozen=True)
class Answer:
    """An answer of a node. problem: None if it is well."""

    problem: str | None


def ask(job: Job, hosts: Sequence[str]) -> dict[str, str]:
    """What ails those of the allocation's hosts that are ill; each is asked alone, so that none keeps another's answer
    from coming."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda host: _ask_one(job, host), hosts))
    return {host: answer for host, answer in zip(hosts, answers, strict=True) if answer}


def _ask_one(job: Job, host: str) -> str | None:
    bare = job.model_copy(update={"container": None})
    step = client.srun(python_command(bare, "launchers.slurm.health", Path.cwd()), [host])
    code, said, errors = client.step_output(step, job.health_seconds)
    if code is None:
        return f"gave no answer within {job.health_seconds:g} s"
    answers = [line for line in said.splitlines() if line.startswith('{"problem"')]
    if not answers:
        last = (errors.strip().splitlines() or ["no words"])[-1]
        return f"could not be asked ({one_line(last, _LONGEST_PROBLEM)})"
    return read_answer(answers[-1])


def read_answer(line: str) -> str | None:
    """What ails a node by the line that it answered; None if it is well."""
    try:
        answer: Answer = parse_json(line, Answer)
    except ValueError as error:
        return f"gave an answer that cannot be used: {one_line(str(error), _LONGEST_PROBLEM)}"
    return one_line(answer.problem, _LONGEST_PROBLEM) if answer.problem else None


def problem_here(job: Job) -> str | None:
    """What is wrong with this node, in a few words; None if a run can start on it."""
    findings = check_node(job.folder, 0 if job.cpu else job.processes_per_node, job.health_seconds / 2)
    return ", ".join(finding.value for finding in findings if finding.status == "fail") or None


def main(arguments: list[str]) -> int:
    """Print what ails this node, for `ask`."""
    try:
        problem = problem_here(read_job(Path(arguments[0])))
    except UserError:
        problem = f"cannot read {arguments[0]}"
    print(json.dumps({"problem": problem}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
