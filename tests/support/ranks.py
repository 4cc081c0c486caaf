"""Run a module or call a function on several gloo ranks of this machine, or run a module on one GPU."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.forked import ROOT, Forked
from tests.support.mlflow_server import free_port


def run_ranks(module: str, world_size: int, *arguments: str, timeout: float = 300) -> None:
    """`python -m module arguments...` as `world_size` ranks; fails if one of them does."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(rank) for rank in range(world_size)]
        ranks = [
            Forked([module, *arguments], _environment(rank, world_size, port), ROOT, output)
            for rank, output in enumerate(outputs)
        ]
        try:
            codes = [rank.wait(timeout) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        told = "\n".join(output.read_text() for output in outputs)
    assert codes == [0] * world_size, f"exit codes {codes}\n{told}"


def check_on_ranks(check: Callable[..., None], world_size: int, *arguments: str | Path, timeout: float = 300) -> None:
    """Call a function of a module as each of `world_size` ranks of one group; fails if one of them does."""
    call = (check.__module__, check.__name__, *map(str, arguments))
    run_ranks("tests.support.rank_process", world_size, *call, timeout=timeout)


def run_on_gpu(module: str, *arguments: str, world_size: int = 1, timeout: float = 600, **variables: str) -> None:
    """`python -m module arguments...` as `world_size` ranks with a GPU each; fails if one of them does.

    variables: further ones of the environment.
    """
    command, port, ranks = [sys.executable, "-m", module, *arguments], free_port(), []
    for rank in range(world_size):
        environment = _environment(rank, world_size, port) | {"DS_ACCELERATOR": "cuda"} | variables
        started = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        ranks.append(started)
    told = [rank.communicate(timeout=timeout)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(told)


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
    }
