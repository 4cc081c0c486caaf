"""Output of squeue as jobs and their runs. Slurm's programs are called in one module."""

import os
import re
from pathlib import Path

import pytest

from launchers.slurm import client
from tests.support.forked import ROOT
from tests.support.slurm_jobs import program

CALL = re.compile(r'"(sbatch|squeue|srun|salloc|sacct|scontrol|sinfo|scancel)"\s*[,\]]')


def line(**fields: str) -> str:
    values = dict.fromkeys(client.FIELDS, "x") | {"comment": "(null)"} | fields
    return client.SEPARATOR.join(values.values())


def test_runs_are_found_by_comment():
    named = client.parse_job(line(id="12", comment="maskwright:/runs/a | b", state="RUNNING"))
    assert (named.id, named.run, named.waits) == ("12", Path("/runs/a | b"), False)
    pending = client.parse_job(line(id="13", comment="maskwright:/runs/s", state="PENDING"))
    assert (pending.run, pending.waits) == (Path("/runs/s"), True)
    assert client.parse_job(line(comment="maskwright:")).run is None
    for other in ("", "slurm_load_jobs error", line(), line() + "\x1f"):
        assert client.parse_job(other) is None


def fake_squeue(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program(folder, "squeue", text)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_a_controller_that_is_down_or_silent(tmp_path, monkeypatch):
    fake_squeue(tmp_path, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", monkeypatch)
    assert client.own_jobs() == ([], "slurm_load_jobs error: Unable to contact slurm controller")
    fake_squeue(tmp_path, "exec sleep 5", monkeypatch)
    assert "did not answer" in client.own_jobs(seconds=0.2)[1]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert client.own_jobs() == ([], "squeue was not found: run this on a login node of a Slurm cluster")


def test_jobs_come_in_order(tmp_path, monkeypatch):
    lines = (line(id=name, comment=f"maskwright:/{name}") for name in ("10_2", "9", "10_1"))
    rows = "\\n".join(lines).replace("\x1f", "\\037")
    fake_squeue(tmp_path, f"printf '{rows}\\n'", monkeypatch)
    assert [job.id for job in client.own_jobs()[0]] == ["9", "10_1", "10_2"]


def test_only_the_slurm_client_calls_slurm():
    sources = [path for package in ("data_prep", "pretrain", "launchers") for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 100
    names_programs = {path.relative_to(ROOT).as_posix() for path in sources if CALL.search(path.read_text())}
    assert names_programs == {"launchers/slurm/client.py"}
