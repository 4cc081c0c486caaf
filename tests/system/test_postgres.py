"""A real MLflow server with its runs in PostgreSQL and its files in an artifact store."""

import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from pretrain.config import TrackConfig
from pretrain.planning import check_tracking
from pretrain.run import Journal
from pretrain.tracking import Target, sync
from tests.support.mlflow_server import Server, ask, free_port, history
from tests.support.tracked import append, expected, run_id, start

pytestmark = pytest.mark.slow


def _programs() -> Path | None:
    """The folder of PostgreSQL's programs; Debian keeps them out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else Path(path).parent if (path := shutil.which("initdb")) else None


@pytest.fixture
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty PostgreSQL database. Skips without PostgreSQL, unless MASKWRIGHT_REQUIRE_POSTGRES=1."""
    programs, missing = _programs(), importlib.util.find_spec("psycopg2") is None
    if programs is None or missing:
        reason = "psycopg2 is not installed" if missing else "PostgreSQL is not installed"
        if os.environ.get("MASKWRIGHT_REQUIRE_POSTGRES") == "1":
            pytest.fail(f"{reason}, and MASKWRIGHT_REQUIRE_POSTGRES=1 says that it must run")
        pytest.skip(reason)
    folder, port = Path("/tmp") / f"maskwright-postgres-{os.getpid()}", free_port()
    folder.mkdir(mode=0o700)
    user = None  # PostgreSQL refuses to run as root
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)

    def run(program: str, *arguments: str) -> None:
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        command = [programs / program, *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=120, **as_user)  # type: ignore[call-overload]

    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    data, log = str(folder / "data"), str(folder / "log")
    try:
        run("initdb", "--pgdata", data, "--username", "mlflow", "--auth", "trust", "--encoding", "UTF8")
        run("pg_ctl", "--pgdata", data, "--log", log, "--options", options, "--wait", "start")
        try:
            run("createdb", "--host", str(folder), "--port", str(port), "--username", "mlflow", "runs")
            yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/runs"
        finally:
            run("pg_ctl", "--pgdata", data, "--mode", "immediate", "--wait", "stop")
    finally:
        shutil.rmtree(folder)


def test_a_database_is_checked_before_training(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong database and a deleted experiment are refused. One that does not answer is not: it may come back."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    check_tracking(TrackConfig(experiment="new"))
    client, number = Target(database, "old").connect()
    check_tracking(TrackConfig(experiment="old"))
    client.delete_experiment(number)
    with pytest.raises(UserError, match="'old' was deleted"):
        check_tracking(TrackConfig(experiment="old"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database.replace("/runs", "/games"))
    with pytest.raises(UserError, match=r'refuses the connection \(database "games" does not exist'):
        check_tracking(TrackConfig())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg2://mlflow@127.0.0.1:{free_port()}/runs")
    check_tracking(TrackConfig())


def test_a_server_with_postgresql_gets_every_point_once(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN and infinities too; a request that was taken and not recorded is sent again, and doubles nothing."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").write_text("<p>")
    (run / "config.yaml").write_text("run: {seed: 7}\n")
    server = Server(tmp_path, store=database)
    try:
        tracker = start(run, server.uri, parent="study")
        unaware = (run / "mlflow_run.json").read_bytes()
        append(run, range(1, 501))
        journal = Journal(run / "journal.jsonl")
        journal.append(501, {"train/loss": float("nan"), "train/grad_norm": float("inf")})
        journal.close()
        append(run, range(401, 1001))
        tracker.log_artifact(run / "report.html")
        tracker.close(120, "FINISHED")
        first = [point for point in expected(run) if point[1] != 501]
        assert [point for point in history(server.uri, run_id(run)) if point[1] != 501] == first
        everything = ask(server.uri, "metrics/get-history", run_id=run_id(run), metric_key="train/loss")["metrics"]
        assert len(everything) == 1000
        (run / "mlflow_run.json").write_bytes(unaware)
        assert sync(run, server.uri) == len(expected(run))
        again = ask(server.uri, "metrics/get-history", run_id=run_id(run), metric_key="train/loss")["metrics"]
        assert len(again) == 1000
        assert [path.read_text() for path in server.files.rglob("report.html")] == ["<p>"]
        assert not (tmp_path / "server.db").exists()
    finally:
        server.stop()
