"""One Slurm cluster of three nodes for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.system.cluster.cluster import Cluster, skip_without, slurm_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without(["slurmctld", "slurmd", "sbatch", "munged"], "slurm-wlm munge iproute2")
    with slurm_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
