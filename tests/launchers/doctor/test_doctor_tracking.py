"""Doctor checks of MLflow: databases, and access to a server."""

import pytest

from launchers.doctor import storage_checks, tracking_checks
from launchers.doctor.check_runner import Check, run_checks
from pretrain.config import TrackConfig
from tests.pretrain.config.test_mlflow_address import BAD
from tests.support.doctor import status


def test_databases(tmp_path):
    disk, nfs = storage_checks.Mount("/", "ext4"), storage_checks.Mount("/", "nfs")
    assert status(tracking_checks.judge_database(tmp_path, disk, writable=True)) == "ok"
    assert status(tracking_checks.judge_database(tmp_path, nfs, writable=True)) == "warn"
    assert status(tracking_checks.judge_database(tmp_path, disk, writable=False)) == "fail"


@pytest.mark.parametrize(
    "scheme, is_local, has_password, expected",
    [
        ("http", True, False, "ok"),
        ("http", True, True, "ok"),
        ("http", False, False, "warn"),
        ("https", False, False, "warn"),
        ("http", False, True, "warn"),
        ("https", False, True, "ok"),
    ],
)
def test_who_can_read_a_server(scheme, is_local, has_password, expected):
    assert status(tracking_checks.judge_exposure(scheme, is_local, has_password)) == expected


@pytest.mark.parametrize("uri", [uri for uri in BAD if uri])
def test_an_impossible_address(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (finding,) = run_checks([Check("tracking", "mlflow", lambda: tracking_checks.check_mlflow(TrackConfig()))])
    assert (finding.name, finding.status) == ("mlflow", "fail")
