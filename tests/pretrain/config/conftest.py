"""A config file for each test."""

from functools import partial

import pytest

from tests.support.configs import config_file


@pytest.fixture
def write(tmp_path):
    return partial(config_file, tmp_path / "config.yaml")
