"""`maskwright doctor` with real faults: disks, shards, servers, drivers."""

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from launchers.doctor import gpu_checks, storage_checks
from launchers.doctor.check_runner import Check, run_checks
from launchers.doctor.tracking_checks import check_mlflow
from launchers.local import Finding
from pretrain.config import TrackConfig
from tests.support.configs import config_file
from tests.support.disks import fill, mounted
from tests.support.runs import ROOT, tiny_config, tiny_data
from tests.support.slurm_jobs import program
from tests.support.web import running

PASSWORD = "hunter2"
SMI = """
case "$*" in
*query-gpu*) cat <<'END'
0, NVIDIA H200, 570.86.15, 143771, 4, 9.0, Disabled, 0
1, NVIDIA H200, 570.86.15, 143771, 90000, 9.0, Disabled, 3
END
;;
*) echo '| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: 12.8     |' ;;
esac
"""


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)


def found(look: Callable[..., Iterable[Finding]], *arguments: Any) -> dict[str, Finding]:
    findings = list(run_checks([Check("group", "name", lambda: look(*arguments), 60)]))
    assert not any("Error" in finding.value for finding in findings), "a check came to grief"
    return {finding.name: finding for finding in findings}


def statuses(findings: dict[str, Finding]) -> dict[str, str]:
    return {name.removeprefix("disk: "): finding.status for name, finding in findings.items()}


def test_a_sound_disk(tmp_path):
    findings = found(storage_checks.check_folder, "disk", tmp_path / "not" / "yet")
    assert findings["disk: lock"].status == "ok"
    assert "is committed in" in findings["disk: writes"].value
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_a_disk_that_cannot_be_written(tmp_path):
    with mounted(tmp_path / "disk", "4m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        findings = found(storage_checks.check_folder, "disk", disk)
    assert statuses(findings) == {"room": "fail", "writes": "fail"}  # 4 MB are no room either
    assert "Read-only file system" in findings["disk: writes"].value


def test_a_full_disk(tmp_path):
    with mounted(tmp_path / "disk", "2g") as disk:
        assert statuses(found(storage_checks.check_folder, "disk", disk))["room"] == "warn"  # less than 20 GiB
    with mounted(tmp_path / "full", "4m") as disk:
        filler = fill(disk)
        findings = found(storage_checks.check_folder, "disk", disk)
        assert list(disk.iterdir()) == [filler], "nothing is left"
    assert statuses(findings) == {"room": "fail", "writes": "fail"}
    assert "No space left" in findings["disk: writes"].value
    assert "make room" in findings["disk: writes"].advice


def run_doctor(config: Path, *words: str, **environment: str) -> tuple[int, dict[str, dict[str, str]], str]:
    """Exit code, findings by name, and all that was printed."""
    command = [sys.executable, "-m", "launchers.cli", "doctor", str(config), *words, "--json"]
    streams = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, env=os.environ | environment, cwd=ROOT, **streams)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    return done.returncode, {one["name"]: one for one in report["findings"]}, done.stdout + done.stderr


def test_damaged_shards_are_found_and_secrets_are_not_printed(tmp_path):
    data = tiny_data(tmp_path / "data")
    config = config_file(tmp_path / "config.yaml", tiny_config(data, tmp_path / "run"))
    with answering(None) as server:
        uri = f"http://me:{PASSWORD}@127.0.0.1:{server.server_port}"
        code, findings, printed = run_doctor(config, MLFLOW_TRACKING_URI=uri, MLFLOW_TRACKING_TOKEN=PASSWORD + "t")
    for name in ("batch and data", "model", "address", "checkpoint", "run.resume", "mlflow"):
        assert findings[name]["status"] == "ok"
    assert (code, findings["password"]["status"]) == (1, "fail")
    assert PASSWORD not in printed
    assert not (tmp_path / "run").exists(), "the doctor only looks"

    shard = next((data / "train" / "shards").glob("*.tar"))
    shard.write_bytes(shard.read_bytes()[:-512])
    code, findings, _ = run_doctor(config)
    assert code == 1
    assert findings["batch and data"]["status"] == "fail"
    assert shard.name in findings["batch and data"]["value"]


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers 200 as MLflow does; with `wanted`, 401 to requests without this Authorization header."""

    wanted: str | None = None

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        allowed = self.wanted in (None, self.headers["Authorization"])
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(b"{}" if allowed else b"You are not authenticated.")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def answering(wanted: str | None) -> contextlib.AbstractContextManager[http.server.HTTPServer]:
    handler = type("Handler", (Answering,), {"wanted": wanted})
    return running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))


def tracked(uri: str) -> dict[str, Finding]:
    return found(check_mlflow, TrackConfig(uri=uri))


def test_a_server_that_does_not_answer(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # it takes connections, and says nothing
        port = hanging.getsockname()[1]
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        findings = tracked(f"http://127.0.0.1:{port}")
    assert findings["mlflow"].status == "fail"
    assert "no answer in time" in findings["mlflow"].value
    assert "refused" in tracked(f"http://127.0.0.1:{port}")["mlflow"].value
    assert tracked("http://no-such-host.invalid:5000")["mlflow"].status == "fail"


def test_a_server_with_a_password(monkeypatch):
    with answering("Basic bWU6aHVudGVyMg==") as server:
        uri = f"http://127.0.0.1:{server.server_port}"
        assert "401" in tracked(uri)["mlflow"].value
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
        assert {name: one.status for name, one in tracked(uri).items()} == {"mlflow": "ok", "exposure": "ok"}
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
        assert tracked(uri)["mlflow"].status == "fail"


def test_gpus_as_the_driver_tells(tmp_path, monkeypatch):
    program(tmp_path, "nvidia-smi", SMI)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    findings = found(gpu_checks.check_gpus, "bf16")
    assert findings["gpus"].value == "2 of driver 570.86.15: NVIDIA H200"
    assert findings["gpu 0"].status == "ok"
    assert findings["gpu 1"].status == "fail"
    assert "3 uncorrected" in findings["gpu 1"].value

    program(tmp_path, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18")
    assert "mismatch" in found(gpu_checks.check_gpus, None)["gpus"].value


@pytest.mark.slow
def test_torch_and_deepspeed_work(tmp_path):
    config = config_file(tmp_path / "config.yaml", tiny_config(tiny_data(tmp_path / "data"), tmp_path / "run"))
    _, findings, _ = run_doctor(config, "--full", OMP_NUM_THREADS="1")
    assert findings["torch runs"]["status"] == "ok"
    assert findings["deepspeed imports"]["status"] == "ok"
