"""Secrets in the environment of a run, and a search for leaks."""

import os
import threading
from pathlib import Path
from types import TracebackType

SECRETS = {
    "MLFLOW_TRACKING_PASSWORD": "pa55-of-mlflow",
    "MLFLOW_TRACKING_TOKEN": "t0ken-of-mlflow",
    "AWS_SECRET_ACCESS_KEY": "k3y-of-aws",
    "HF_TOKEN": "hf_t0ken",
    "WANDB_API_KEY": "k3y-of-wandb",
}
URI_PASSWORD = "pa55-of-uri"
URI = f"http://someone:{URI_PASSWORD}@127.0.0.1:9"
VALUES = [value.encode() for value in (*SECRETS.values(), URI_PASSWORD)]


def leaks(folder: Path) -> list[str]:
    """The files below a folder with a secret in them or in their path; every byte of them is read."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files, f"{folder} is empty"
    return [str(path) for path in files if any(value in bytes(path) + path.read_bytes() for value in VALUES)]


class CommandLines(threading.Thread):
    """Reads the command lines of all processes, again and again, while the block runs.

    Attributes:
        leaked: command lines with a secret.
        ranks: process ids of training processes seen.
        knowing: those of them that have the secrets where they belong, in their environment.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.leaked: set[str] = set()
        self.ranks: set[str] = set()
        self.knowing: set[str] = set()
        self._end = threading.Event()

    def __enter__(self) -> "CommandLines":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        while not self._end.wait(0.05):
            for process in filter(str.isdecimal, os.listdir("/proc")):
                try:
                    self._look(process)
                except OSError:  # it ended
                    continue

    def _look(self, process: str) -> None:
        line = Path(f"/proc/{process}/cmdline").read_bytes()
        if any(value in line for value in VALUES):
            self.leaked.add(line.replace(b"\0", b" ").decode())
        if b"-m\0pretrain.train\0" in line and b"deepspeed.launcher" not in line and process not in self.knowing:
            self.ranks.add(process)
            environment = Path(f"/proc/{process}/environ").read_bytes()
            if all(f"{name}={value}".encode() in environment for name, value in SECRETS.items()):
                self.knowing.add(process)
