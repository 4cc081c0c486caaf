"""What holds for all tests."""

from collections.abc import Iterator

import pytest

from tests.support import forked


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Nothing that a module's tests started outlives them."""
    yield
    forked.assert_none_left()
