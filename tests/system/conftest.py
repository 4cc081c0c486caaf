"""Data, a tokenizer, a server of MLflow and a run folder for whole runs. No test may change what a session shares."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from data_prep.tokenizer import train_tokenizer
from tests.support import fault_injection, prep, runs
from tests.support.mlflow_server import Server


@pytest.fixture(autouse=True)
def _no_mlflow_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets of tests.support.runs.tiny_data."""
    return runs.tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes and 24 steps, with checkpoints of steps 8, 16 and 24."""
    return runs.trained(data, tmp_path_factory.mktemp("finished") / "run", 2, checkpoint__keep=3)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WordPiece tokenizer for tests.support.prep.texts."""
    folder = tmp_path_factory.mktemp("tokenizer") / "tok"
    train_tokenizer(prep.texts(0, 300), "wordpiece", 120, folder)
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of MLflow. It has the runs of all tests of this session."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder that has a config alone."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("run: {seed: 7}\n")
    return run


@pytest.fixture
def harm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the faults of the runs that follow, see tests.support.fault_injection."""

    def set_faults(*faults: str) -> None:
        for name, value in fault_injection.variables(*faults).items():
            monkeypatch.setenv(name, value)

    return set_faults
