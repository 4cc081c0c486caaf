"""Row 29: secrets in the environment of `maskwright train` stay out of all that others read."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml

from tests.datasets import make_dataset
from tests.secrets import SECRETS, URI, URI_PASSWORD, CommandLines, leaks

ROOT = Path(__file__).resolve().parents[2]


def maskwright(*words: str | Path, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "launchers.cli", *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | SECRETS | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


def test_secrets_stay_secret(tmp_path: Path) -> None:
    """In command lines, the log, MLflow's database and artifacts, the run folder, its checkpoints and an export."""
    rng = np.random.default_rng(0)
    make_dataset(tmp_path / "data", [rng.integers(5, 1000, size=100) for _ in range(100)])
    config = {
        "run": {"dir": "run"},
        "data": {"train": "data", "seq_len": 64},
        "model": {"size": {"layers": 1, "hidden": 64, "heads": 2}},
        "train": {"steps": 3, "global_batch_size": 4, "precision": "fp32"},
        "track": {"uri": "sqlite:///mlflow.db"},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with CommandLines() as seen:
        tracked = maskwright("train", "config.yaml", "--procs", "2", cwd=tmp_path)
        # Nobody listens there: what MLflow says about it is in the log, with the address.
        away = maskwright(
            *("train", "config.yaml", "--procs", "2", "train.steps=4"),
            **{"cwd": tmp_path, "MLFLOW_TRACKING_URI": URI, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"},
        )
        exported = maskwright("export", "run", cwd=tmp_path)
    for number, done in enumerate((tracked, away, exported)):
        assert done.returncode == 0, done.stdout
        (tmp_path / f"log{number}").write_text(done.stdout)
    assert "127.0.0.1:9" in away.stdout, "it did try"
    assert (tmp_path / "mlflow.db").exists()
    assert list((tmp_path / "run" / "exports").rglob("model.safetensors"))
    assert len(seen.knowing) >= 2
    assert not seen.leaked
    assert not leaks(tmp_path)


def test_a_leak_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "database").write_bytes(b"\0" + URI_PASSWORD.encode() + b"\0")
    assert leaks(tmp_path) == [str(tmp_path / "database")]
    with CommandLines() as seen:
        subprocess.run(["sh", "-c", "sleep 0.5; true", SECRETS["HF_TOKEN"]], check=True)
    assert [line for line in seen.leaked if line.startswith("sh -c")]
