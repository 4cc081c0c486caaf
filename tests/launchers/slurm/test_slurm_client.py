"""Slurm's programs are called in one module."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
CALL = re.compile(r'"(sbatch|squeue|srun|salloc|sacct|scontrol|sinfo|scancel)"\s*[,\]]')


def test_only_the_slurm_client_calls_slurm():
    sources = [path for package in ("data_prep", "pretrain", "launchers") for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 100
    names_programs = {path.relative_to(ROOT).as_posix() for path in sources if CALL.search(path.read_text())}
    assert names_programs == {"launchers/slurm/client.py"}
