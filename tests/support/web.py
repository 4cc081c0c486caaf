"""A web server that supports ranges, with faults on request."""

import contextlib
import http.server
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

Server = TypeVar("Server", bound=http.server.ThreadingHTTPServer)


class Web(http.server.ThreadingHTTPServer):
    """Serves `folder` at `url`. `gets` are the (path, range) asked for; a server without `ranges` sends whole files.

    Files named forbidden* are refused, and those named sizeless* are sent without their size and time.
    The next `cuts` answers end after half of their bytes, the next `failures` are 503; a GET takes `delay` seconds.
    """

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.url = folder, f"http://127.0.0.1:{self.server_port}"
        self.gets: list[tuple[str, str | None]] = []
        self.cuts = self.failures = 0
        self.delay, self.ranges = 0.0, True
        self.lock = threading.Lock()

    def handle_error(self, request, client_address):
        """A client that goes away is no error of the server."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Web

    def do_GET(self):
        with self.server.lock:
            self.server.gets.append((self.path, self.headers["Range"]))
        time.sleep(self.server.delay)
        self._answer(with_body=True)

    def do_HEAD(self):
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = self.server.folder / self.path.partition("?")[0].lstrip("/")
        if path.name.startswith("forbidden"):
            self.send_error(403)
            return
        if path.is_dir():
            self._list(path, with_body)
            return
        if with_body and self._take("failures"):
            self.send_error(503)
            return
        if not path.is_file():
            self.send_error(404)
            return
        data, size = path.read_bytes(), path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if asked and self.server.ranges:
            first, last = int(asked[1]), int(asked[2] or size - 1)
            if first >= size:
                self.send_error(416)
                return
            data = data[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{min(last, size - 1)}/{size}")
        else:
            self.send_response(200)
        if not path.name.startswith("sizeless"):
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        if not with_body:
            return
        if self._take("cuts"):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.connection.close()
        else:
            self.wfile.write(data)

    def _list(self, folder: Path, with_body: bool) -> None:
        names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
        page = "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if with_body:
            self.wfile.write(page)

    def _take(self, name: str) -> bool:
        with self.server.lock:
            left = getattr(self.server, name)
            setattr(self.server, name, max(0, left - 1))
        return left > 0

    def log_message(self, *args):
        pass


def serving(folder: Path) -> contextlib.AbstractContextManager[Web]:
    return running(Web(folder))


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """A server that answers in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
