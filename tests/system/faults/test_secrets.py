"""Row 29: secrets in the environment of `maskwright train` do not appear in files or process lists that others read."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.datasets import make_dataset
from tests.support.forked import Completed, run_forked
from tests.support.secrets import SECRETS, URI, URI_PASSWORD, CommandLines, leaks
from tests.support.text_data import text_data


def train(folder: Path, **environment: str) -> Completed:
    command = [sys.executable, "-m", "launchers.cli", "train", "config.yaml", "--procs", "2"]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    variables = runs.environment() | SECRETS | environment
    return subprocess.run(command, cwd=folder, env=variables, text=True, timeout=240, **streams)


def write_config(folder: Path) -> None:
    """A config in a folder, for a tiny run on data/train in it."""
    values = {
        "run": {"dir": "run"},
        "data": {"train": "data/train", "seq_len": 32},
        "model": {"size": {"layers": 1, "hidden": 32, "heads": 2}},
        "train": {"steps": 3, "global_batch_size": 4, "precision": "fp32"},
        "track": {"uri": "sqlite:///mlflow.db"},
    }
    runs.write_config(folder / "config.yaml", values)


def check(folder: Path, seen: CommandLines, *done: Completed) -> None:
    """The commands succeeded, their processes had the secrets, and nothing in the folder or in `ps` told them."""
    for number, command in enumerate(done):
        output = command.stdout + (command.stderr or "")
        assert command.returncode == 0, output
        (folder / f"log{number}").write_text(output)
    assert len(seen.knowing) >= 2
    assert not seen.leaked
    assert not leaks(folder)


@pytest.mark.slow
def test_secrets_stay_secret(tmp_path: Path) -> None:
    """In command lines, the log, MLflow's database and artifacts, the run folder, its checkpoints and an export."""
    text_data(tmp_path)
    write_config(tmp_path)
    with CommandLines() as seen:
        trained = train(tmp_path)
        words = ["launchers.cli", "export", "run"]
        exported = run_forked(words, runs.environment() | SECRETS, tmp_path, timeout=240)
    check(tmp_path, seen, trained, exported)
    assert (tmp_path / "mlflow.db").exists()
    assert list((tmp_path / "run" / "checkpoints").rglob("*.pt"))
    assert list((tmp_path / "run" / "exports").rglob("model.safetensors"))


@pytest.mark.slow
def test_a_password_in_mlflows_address_stays_secret(tmp_path: Path) -> None:
    """No server listens there: the log names the address."""
    make_dataset(tmp_path / "data" / "train", [range(5, 100)] * 50)
    write_config(tmp_path)
    with CommandLines() as seen:
        environment = {"MLFLOW_TRACKING_URI": URI, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        trained = train(tmp_path, **environment)
    assert "127.0.0.1:9" in trained.stdout, "it did try"
    check(tmp_path, seen, trained)


def test_a_leak_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "database").write_bytes(b"\0" + URI_PASSWORD.encode() + b"\0")
    assert leaks(tmp_path) == [str(tmp_path / "database")]
    with CommandLines() as seen:
        subprocess.run(["sh", "-c", "sleep 0.5; true", SECRETS["HF_TOKEN"]], check=True)
    assert [line for line in seen.leaked if line.startswith("sh -c")]
