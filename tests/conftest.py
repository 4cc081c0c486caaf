"""What holds for all tests: which of them one worker of `pytest -n 2` gets together, and that no process is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import forked

settings.register_profile("no deadline", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("no deadline")
_CLUSTER = Path(__file__).parent / "cluster"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module's tests share its fixtures, so one worker runs them all; those of tests/cluster share the cluster."""
    for item in items:
        group = "cluster" if _CLUSTER in item.path.parents else str(item.path.relative_to(_CLUSTER.parent))
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Nothing that a module's tests started outlives them."""
    yield
    forked.assert_none_left()
