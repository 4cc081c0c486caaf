"""What holds for all tests: no deadlines, and no process is left."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")  # what its asserts compared is told, too

from tests.support import forked  # noqa: E402

settings.register_profile("no deadline", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("no deadline")


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Nothing that a module's tests started outlives them."""
    yield
    forked.assert_none_left()
