"""The packages that tests of other people's tools need: `make test-conformance` installs them."""

import os
from importlib.util import find_spec

import pytest


def need(*names: str) -> None:
    """Skip a test without these packages; MASKWRIGHT_REQUIRE_CONFORMANCE=1 makes that a failure."""
    if missing := [name for name in names if find_spec(name) is None]:
        reason = f"{', '.join(missing)} not installed; `make test-conformance` installs it"
        if os.environ.get("MASKWRIGHT_REQUIRE_CONFORMANCE") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
