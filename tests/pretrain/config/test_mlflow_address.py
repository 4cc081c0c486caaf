"""Addresses of MLflow: an impossible one is refused before training, and is no outage."""

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from data_prep.common.errors import UserError
from pretrain.config import TrackConfig, address_problem
from pretrain.config.mlflow_address import DATABASES, SERVERS, plugins
from pretrain.config_files import load_config
from pretrain.planning import check_start, check_tracking
from pretrain.tracking import RunRecord, Target, Tracker
from tests.support.study_runs import study_config, study_data

GOOD = (
    *("none", "http://localhost:5000", "https://mlflow.example.com/prefix", "http://[::1]:5000", "http://h"),
    *("sqlite:///mlflow.db", "sqlite:////abs/mlflow.db", "sqlite:////my files/a.db", "sqlite:///a.db?timeout=9"),
    "sqlite+pysqlite:///a.db",
    *("postgresql://host/db", "postgresql+psycopg2://host:5432/db", "mysql+pymysql://host/db", "mysql://host/db"),
    *("mssql+pyodbc://host/db", "databricks", "databricks://profile"),
)
BAD = {
    "localhost:5000": "has no scheme. Write http://localhost:5000",
    "127.0.0.1:5000": "has no scheme. Write http://127.0.0.1:5000",
    "[::1]:5000": "Write http://[::1]:5000",
    "foo://bar": "MLflow has no addresses of the kind foo://",
    "uc://catalog": "MLflow has no addresses of the kind uc://",
    "sqlite://mlflow.db": "Write sqlite:///mlflow.db",
    "http://": "names no server. Write http://HOST:PORT",
    "http:/localhost:5000": "names no server",
    "http://host:port": "is not a valid address",
    "mlruns": "is a folder, which MLflow no longer supports",
    "file:///tmp/mlruns": "is a folder, which MLflow no longer supports",
    "": "is not an MLflow address",
    "http://ho st:5000": "is not an MLflow address",
    "http://host\x1b[31m": "is not an MLflow address",
}


@pytest.mark.parametrize("uri", GOOD)
def test_possible_addresses_are_taken(uri: str) -> None:
    assert address_problem(uri) is None
    assert TrackConfig(uri=uri).uri == uri


@pytest.mark.parametrize("uri", BAD)
def test_impossible_addresses_are_refused_in_one_line(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = address_problem(uri)
    assert BAD[uri] in problem
    assert len(problem) <= 250
    assert problem.isprintable()
    with pytest.raises(ValidationError):
        TrackConfig(uri=uri)
    if uri:
        with pytest.raises(UserError):
            Target.of_command(uri, None)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(UserError):
            check_tracking(TrackConfig())


def test_the_schemes_are_those_of_mlflow() -> None:
    from mlflow.tracking._tracking_service.utils import _tracking_store_registry

    ours = {"", "file", "databricks", "databricks-uc", "uc", *SERVERS, *DATABASES}
    theirs = set(_tracking_store_registry._registry)
    assert theirs - plugins() == ours


def test_a_plugin_s_scheme_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "plug-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mlflow.tracking_store]\nfoo = plug:Store\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert address_problem("foo://bar") is None


def test_training_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = study_config(tmp_path, study_data(tmp_path))
    check_start(load_config(config), 1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "localhost:5000")
    with pytest.raises(
        UserError, match=r"MLFLOW_TRACKING_URI: localhost:5000 has no scheme\. Write http://localhost:5000"
    ):
        check_start(load_config(config), 1)
    check_tracking(load_config(config, ["track.uri=none"]).track)  # sends nothing, for any environment


def test_results_go_to_the_experiment_of_the_run_that_made_the_model(tmp_path, monkeypatch) -> None:
    for name in ("books", "web"):
        run = tmp_path / name
        (run / "exports" / "step-00000010").mkdir(parents=True)
        Tracker(run, RunRecord("none", name, "r", {}, {}))
    export = tmp_path / "books" / "exports" / "step-00000010"
    assert Target.of_command(None, None, [tmp_path / "books"])[1] == "books"
    assert Target.of_command(None, None, [export])[1] == "books"
    monkeypatch.chdir(export)
    assert Target.of_command(None, None, [Path()])[1] == "books"
    assert Target.of_command(None, None, [export, tmp_path / "web"])[1] == "maskwright"  # they are of two
    assert Target.of_command(None, None, [tmp_path / "elsewhere"])[1] == "maskwright"
    assert Target.of_command(None, "mine", [export])[1] == "mine"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "site")
    assert Target.of_command(None, None, [export])[1] == "site"


def test_a_database_without_its_driver_and_a_missing_mlflow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_problem("sqlite:///a.db", driver=True) is None
    assert address_problem("http://host", driver=True) is None
    problem = address_problem("mssql+pymssql://me:secret@host/db", driver=True)
    assert "needs the Python package pymssql" in problem
    assert "secret" not in problem
    for uri in ("postgresql+nodriver://host/db", "mysql+nodriver://me@host/x"):
        assert "cannot be used" in str(address_problem(uri, driver=True))
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    problem = "The Python package mlflow is not installed. Install it, or set track.uri: none."
    assert address_problem("sqlite:///a.db", driver=True) == problem
