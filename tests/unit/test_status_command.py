"""`maskwright status` and `stop`, in this process."""

import json

import pytest
from typer.testing import CliRunner

from launchers.app import app
from launchers.commands import status
from pretrain.run_folder import RunFolder
from tests.support.report_runs import eventful, write_run


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.create()
    return found


def test_a_reason_is_printed_as_it_is(folder):
    folder.write_status("failed", 3, 10, "[/__w/gloo/pair.cc:553] closed [bold]", "run it again")
    result = CliRunner().invoke(app, ["status", str(folder.path)])
    assert result.exit_code == 0, result.exception
    assert "[/__w/gloo/pair.cc:553] closed [bold]" in result.output


@pytest.mark.parametrize(("state", "code"), [("completed", 0), ("stopped", 75), ("failed", 1)])
def test_exit_code_is_the_run_s(folder, state, code):
    folder.write_status(state, 10, 10, "because", "none")
    assert CliRunner().invoke(app, ["status", str(folder.path), "--exit-code"]).exit_code == code


def test_a_run_that_nobody_holds_has_failed(folder):
    folder.write_status("running", 4, 10, "training", "none")
    shown = json.loads(CliRunner().invoke(app, ["status", str(folder.path), "--json"]).output)
    assert shown["state"] == "failed"
    assert "after step 4" in shown["reason"]
    CliRunner().invoke(app, ["stop", str(folder.path)])
    assert not folder.stop.exists()
    lock = folder.lock()
    shown = json.loads(CliRunner().invoke(app, ["status", str(folder.path), "--json"]).output)
    assert shown["state"] == "running"
    CliRunner().invoke(app, ["stop", str(folder.path)])
    assert folder.stop.exists()
    lock.close()


def test_goodput_is_told_of_one_run(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", eventful())
    shown = json.loads(CliRunner().invoke(app, ["status", str(run), "--json"]).output)
    assert shown["goodput"] == pytest.approx(60 / (60 + 6 + 3 + 26 + 65))
    assert "37.5%" in CliRunner().invoke(app, ["status", str(run)]).output
    monkeypatch.setattr(status, "_SHORT_JOURNAL", 1000)
    assert json.loads(CliRunner().invoke(app, ["status", str(run), "--json"]).output)["goodput"] is None
