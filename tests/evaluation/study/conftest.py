"""Data and the config of a study, shared by the tests of this folder."""

from pathlib import Path

import pytest

from tests.support.study_runs import study_config, study_data


@pytest.fixture(scope="package")
def data(tmp_path_factory) -> Path:
    return study_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config(data, tmp_path) -> Path:
    return study_config(tmp_path, data)
