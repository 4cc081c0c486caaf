"""Row 29 on Slurm: secrets in the environment of `maskwright launch slurm` reach only the ranks."""

from pathlib import Path

import pytest

from tests.support.secrets import SECRETS, CommandLines, leaks
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.jobs import START_SECONDS, launch, write_run


@pytest.mark.slow
def test_a_job_tells_no_secret(cluster: Cluster, tmp_path: Path) -> None:
    """Not its script, its description and its log, and nothing that the run leaves."""
    config = write_run(tmp_path, 5)
    with CommandLines() as seen:
        job_id = launch(cluster, config, tmp_path / "run", **SECRETS)
        state = cluster.wait(job_id, START_SECONDS)
    (tmp_path / "described").write_text(cluster.run("scontrol", "show", "job", "--details", job_id))
    assert state == "COMPLETED"
    assert len(seen.knowing) >= 2
    assert not seen.leaked
    assert not leaks(tmp_path)
