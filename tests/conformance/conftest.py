"""The packages of the extra `conformance`: without them these tests are skipped, or fail where they must run."""

import os

import pytest

from tests.conformance.table import missing_packages


@pytest.fixture(scope="session", autouse=True)
def _packages() -> None:
    """Skip without the packages; MASKWRIGHT_REQUIRE_CONFORMANCE=1 makes that a failure."""
    if missing := missing_packages():
        reason = f"not installed: {', '.join(missing)}. Run `make test-conformance`."
        if os.environ.get("MASKWRIGHT_REQUIRE_CONFORMANCE") == "1":
            pytest.fail(f"{reason} MASKWRIGHT_REQUIRE_CONFORMANCE=1 says that these tests must run.")
        pytest.skip(reason)
