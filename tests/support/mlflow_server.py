"""A real MLflow server, and a proxy that fails as a network does."""

import contextlib
import http.server
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.empty_store import copy_empty_store
from tests.support.runs import wait_for


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """An `mlflow server` process, by default on a free port of this machine, with its store in `folder`."""

    def __init__(self, folder: Path, port: int | None = None, store: str | None = None) -> None:
        port = port or free_port()
        self.port, self.uri = port, f"http://127.0.0.1:{port}"
        self.database, self.files = folder / "server.db", folder / "files"
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--workers", "1", "--artifacts-destination", str(self.files)]
        command += ["--backend-store-uri", store or f"sqlite:///{self.database}"]
        if store is None and not self.database.exists():
            copy_empty_store(self.database)
        # Its processes for jobs are not needed here, and take three times as long to start as the server.
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with open(folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        with contextlib.suppress(AssertionError):
            wait_for(lambda: self._answers() or self.process.poll() is not None, 300)
        if not self._answers():
            self.stop()
            pytest.fail((folder / "server.log").read_text())

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{self.uri}/health", timeout=1).read())
        return False

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def thaw(self) -> None:
        """After SIGSTOP, and wait until connections that were idle for too long are closed."""
        self.signal(signal.SIGCONT)
        wait_for(self._answers)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """No file of the server's may grow."""
        mine = psutil.Process(self.process.pid)
        processes = [process.pid for process in (mine, *mine.children(recursive=True))]
        unlimited = resource.prlimit(processes[0], resource.RLIMIT_FSIZE)
        for pid in processes:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (self.database.stat().st_size, unlimited[1]))
        try:
            yield
        finally:
            for pid in processes:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)


class Proxy(http.server.ThreadingHTTPServer):
    """Hands requests to a server, according to `mode`:

    "pass"; "500" or another code, an answer without asking the server;
    "lost", the server is asked and its answer is not handed on;
    "hold", the request waits until another mode is set, and is handed on then, as a frozen server takes it.

    `script`, if set, gives each request its mode instead.
    """

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.mode = target, "pass"
        self.script: Iterator[str] | None = None
        self.requests: Counter[str] = Counter()  # by mode
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self.mode = "pass"
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        mode = next(self.server.script) if self.server.script else self.server.mode
        self.server.requests[mode] += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        while self.server.mode == "hold":
            time.sleep(0.02)
        code, answer = (int(mode), b"{}" if mode == "500" else b"refused") if mode.isdecimal() else self._ask(body)
        if mode == "lost":
            code, answer = 502, b"{}"
        with contextlib.suppress(OSError):  # the client closed the connection
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        request = urllib.request.Request(self.server.target + self.path, body or None, headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 502, b"{}"

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served_model(place: str | Path, log: Path) -> Iterator[int]:
    """Serve a logged model with `mlflow models serve`; the port."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(place), "--env-manager", "local"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # uvicorn is there
    with open(log, "wb") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        server = subprocess.Popen([*command, "--port", str(port)], env=environment, start_new_session=True, **streams)
    try:
        wait_for(lambda: answer(port, "ping")[0] == 200 or server.poll() is not None, 300)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answer(port: int, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Status and JSON of a request to a model server; status 0 while it does not listen."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read().strip() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")
    except OSError:
        return 0, None
