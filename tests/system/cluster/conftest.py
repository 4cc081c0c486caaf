"""One Slurm cluster of three nodes for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest

from tests.system.cluster.cluster import Cluster, slurm_cluster, why_unavailable


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster. Skips where there can be none, unless MASKWRIGHT_REQUIRE_SLURM=1 (set in CI) forbids that."""
    reason = why_unavailable()
    if reason and os.environ.get("MASKWRIGHT_REQUIRE_SLURM") == "1":
        pytest.fail(f"{reason}, and MASKWRIGHT_REQUIRE_SLURM=1 says that it must run")
    if reason:
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("cluster"), nodes=3) as running:
        yield running
