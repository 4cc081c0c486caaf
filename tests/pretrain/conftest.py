"""Fixtures: no settings of MLflow, a data set, a config file, a process group of one rank, Triton's interpreter."""

from functools import partial

import pytest
import torch.distributed as dist

from tests.support.configs import config_file
from tests.support.runs import tiny_data
from tests.support.triton_process import triton_process


@pytest.fixture(autouse=True)
def _no_mlflow_environment(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The folder of `tiny_data`, which tests must not change."""
    return tiny_data(tmp_path_factory.mktemp("books"))


@pytest.fixture
def write(tmp_path):
    """Write the config file of a test."""
    return partial(config_file, tmp_path / "config.yaml")


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    """A group of one rank, for collectives that are tested in this process."""
    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def interpreter():
    """Calls a function in a process with Triton's interpreter."""
    with triton_process(interpret=True) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()
