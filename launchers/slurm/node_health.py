"""Node checks before a start. `python -m launchers.slurm.node_health CONFIG` checks one node; `ask` checks all."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_prep.common.errors import UserError, one_line
from launchers.local import check_node
from launchers.slurm import client
from launchers.slurm.launch_attempt import python_command
from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.run import RunFolder

_AT_ONCE = 32
_LONGEST_PROBLEM = 200
_MARK = "maskwright node:"  # before the problems, on one line; a healthy node prints nothing after it


def ask(config: Config, hosts: Sequence[str]) -> dict[str, str]:
    """The problems by unhealthy host. Each host has a separate job step, so that it cannot delay the others."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda host: _ask_one(config, host), hosts))
    return {host: answer for host, answer in zip(hosts, answers, strict=True) if answer}


def _ask_one(config: Config, host: str) -> str | None:
    bare = config.model_copy(update={"cluster": config.cluster.model_copy(update={"container": None})})
    seconds = config.cluster.health_seconds
    command = python_command(bare, "launchers.slurm.node_health", Path.cwd())
    code, output, errors = client.run_timed_step(client.srun(command, [host]), seconds)
    if code is None:
        return f"gave no answer within {seconds} s"
    answers = [line.removeprefix(_MARK).strip() for line in output.splitlines() if line.startswith(_MARK)]
    if not answers:
        last = (errors.strip().splitlines() or ["no error message"])[-1]
        return f"could not be asked ({one_line(last, _LONGEST_PROBLEM)})"
    return one_line(answers[-1], _LONGEST_PROBLEM) or None


def problem_here(config: Config) -> str | None:
    """The problem of this node in a few words; None if a run can start on it."""
    cluster = config.cluster
    gpus = 0 if cluster.cpu else cluster.gpus_per_node
    findings = check_node(RunFolder(config.run.dir).slurm, gpus, cluster.health_seconds / 2)
    return ", ".join(finding.value for finding in findings if finding.status == "fail") or None


def main(arguments: list[str]) -> int:
    """Print the problems of this node, for `ask`."""
    try:
        problem = problem_here(load_config(Path(arguments[0])))
    except UserError:
        problem = f"cannot read {arguments[0]}"
    print(_MARK, one_line(problem or ""), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
