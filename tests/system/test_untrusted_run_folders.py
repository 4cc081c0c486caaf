"""Run folders from others: no file outside is sent, and nothing goes to an address that only they name."""

import json
import os
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from data_prep.common.errors import UserError
from pretrain.tracking import copy_journal
from tests.support import runs
from tests.support.in_process import refused
from tests.support.mlflow_server import Server
from tests.support.tracked import append, start

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    key = tmp_path / "home" / ".ssh" / "id_ed25519"
    key.parent.mkdir(parents=True)
    key.write_text(SECRET)
    return key


def planted(tmp_path: Path, uri: str, *artifacts: str) -> Path:
    """A run folder whose record names an address and files."""
    run = tmp_path / "run"
    run.mkdir()
    append(run, range(1, 4))
    (run / "config.yaml").write_text("run: {seed: 7}  # theirs\n")
    record = {"uri": uri, "experiment": f"untrusted {tmp_path.name}", "run_name": "theirs", "params": {}, "tags": {}}
    record |= {"key": "0" * 32, "artifacts": [*artifacts, "config.yaml"]}
    (run / "mlflow_run.json").write_text(json.dumps(record))
    return run


def received(server: Server) -> str:
    return "\n".join(path.read_text() for path in server.files.rglob("*") if path.is_file())


def has_experiment(server: Server, tmp_path: Path) -> bool:
    return MlflowClient(server.uri).get_experiment_by_name(f"untrusted {tmp_path.name}") is not None


def test_no_file_outside_the_run_folder_is_sent(tmp_path: Path, key: Path, server: Server) -> None:
    names = [str(key), "../home/.ssh/id_ed25519", "link", "folder/id_ed25519", "pipe", "a\0", "x" * 999, "..", ".", ""]
    run = planted(tmp_path, server.uri, *names)
    (run / "link").symlink_to(key)
    (run / "folder").symlink_to(key.parent)
    os.mkfifo(run / "pipe")
    done = runs.maskwright("track", "sync", run, "--uri", server.uri)
    assert done.returncode == 0, done.stderr
    assert SECRET not in received(server)
    assert "# theirs" in received(server)
    for name in names[:5]:
        assert f"{name!r} is not sent to MLflow" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((run / "mlflow_run.json").read_text())["artifacts"] == []


def test_a_resumed_training_sends_no_file_that_the_folder_named_and_keeps_its_own_address(
    tmp_path: Path, key: Path, server: Server
) -> None:
    run = planted(tmp_path, "http://127.0.0.1:1", str(key), "link")
    (run / "link").symlink_to(key)
    tracker = start(run, server.uri, experiment=f"untrusted {tmp_path.name}")
    append(run, range(4, 6))
    tracker.close(60, "FINISHED")
    assert has_experiment(server, tmp_path)
    assert SECRET not in received(server)
    record = json.loads((run / "mlflow_run.json").read_text())
    assert (record["uri"], record["artifacts"]) == (server.uri, [])


def test_an_address_of_the_folder_is_used_only_if_the_user_agrees(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planted(tmp_path, server.uri)
    line = refused("track", "sync", run)
    assert all(words in line for words in (server.uri, "--uri", "--yes"))
    assert len(line) <= 300
    for words in (("models", run), ("models", run, "--register", "m")):
        assert "--yes" in refused("track", *words)
    assert not has_experiment(server, tmp_path)
    with monkeypatch.context() as named:
        named.setenv("MLFLOW_TRACKING_URI", server.uri)
        runs.succeed("track", "sync", run)
    assert has_experiment(server, tmp_path)
    runs.succeed("track", "sync", run, "--yes")


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_copy_of_the_journal_changes_nothing_outside_the_run_folder(tmp_path: Path, kind: str) -> None:
    run, theirs = planted(tmp_path, "none"), tmp_path / "photos"
    (theirs / f"offline-run-20260101_000000-{'0' * 32}").mkdir(parents=True)
    (run / kind).symlink_to(theirs)
    with pytest.raises(UserError, match="is a symbolic link"):
        copy_journal(run, kind, follow=False)
    (run / kind).unlink()
    (run / kind / "offline-run-x-x").mkdir(parents=True)
    record = json.loads((run / "mlflow_run.json").read_text())
    (run / "mlflow_run.json").write_text(json.dumps(record | {"key": "x/../../../photos"}))
    with pytest.raises(UserError, match="not 32 hexadecimal digits"):
        copy_journal(run, kind, follow=False)
    assert len(list(theirs.iterdir())) == 1


def test_a_copy_of_the_journal_waits_for_no_pipe(tmp_path: Path) -> None:
    run = planted(tmp_path, "none")
    (run / "tensorboard").mkdir()
    os.mkfifo(run / "tensorboard" / "events.out.tfevents.1")
    with pytest.raises(UserError, match="is a pipe"):
        copy_journal(run, "tensorboard", follow=False)


def test_a_package_that_is_missing_is_named_for_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # what Python does where it is not installed
    with pytest.raises(UserError, match=r"pip install wandb$"):
        copy_journal(planted(tmp_path, "none"), "wandb", follow=False)
