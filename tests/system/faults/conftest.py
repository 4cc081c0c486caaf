"""Data of the runs in this folder."""

from pathlib import Path

import pytest

from tests.support import runs


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets of tests.support.runs.tiny_data; no test may change them."""
    return runs.tiny_data(tmp_path_factory.mktemp("data"))
