"""Is a node fit to train? `python -m launchers.slurm.health JOB_JSON` says so on the node; `ask` asks all of them."""

import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import UserError, one_line
from data_prep.reading import parse_json
from launchers.slurm import client
from launchers.slurm.job import Job, read_job
from launchers.slurm.srun import python_command

_LEAST_MEMORY = 0.02
_LEAST_DISK_BYTES = 100 << 20
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
    """What ails this node, in a few words; None if it is well."""
    found = [_gpus(job), _run_folder(job.folder), _memory(Path("/proc/meminfo").read_text()), _room(Path("/tmp"))]
    return ", ".join(filter(None, found)) or None


def _gpus(job: Job) -> str | None:
    if job.cpu:
        return None
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=job.health_seconds / 2)
    except FileNotFoundError:  # GPUs of another maker, or none; the ranks will tell
        return None
    except subprocess.TimeoutExpired:
        return "nvidia-smi hangs"
    count = len([line for line in shown.stdout.splitlines() if line.strip().isdigit()])
    if shown.returncode or count < job.processes_per_node:
        return f"has {count} of {job.processes_per_node} GPUs by nvidia-smi"
    return None


def _run_folder(folder: Path) -> str | None:
    path = folder / f".health-{socket.gethostname()}-{os.getpid()}"
    token = uuid.uuid4().hex
    try:
        path.write_text(token)
        read = path.read_text()
        path.unlink()
    except OSError as error:
        return f"cannot write the run folder ({error.strerror})"
    return None if read == token else "reads from the run folder what was not written"


def _memory(meminfo: str) -> str | None:
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in meminfo.splitlines() if len(line.split()) > 1}
    total, free = sizes["MemTotal"], sizes["MemAvailable"]
    return f"has {free / total:.1%} of its memory left" if free < _LEAST_MEMORY * total else None


def _room(folder: Path) -> str | None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder} cannot be read ({error.strerror})"
    return f"has {free >> 20} MiB left in {folder}" if free < _LEAST_DISK_BYTES else None


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
