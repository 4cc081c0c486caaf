"""Unwritable status.json: a one-line error, an exit code, and no run that seems to continue."""

import contextlib
import errno
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import runs


@contextlib.contextmanager
def unchangeable(path: Path) -> Iterator[None]:
    """A file that cannot be changed, replaced or deleted; the test is skipped where none can be made."""
    done = subprocess.run(["chattr", "+i", str(path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file can be made unchangeable here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_a_status_that_cannot_be_replaced_is_one_line_at_the_end(data, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    process = runs.start_maskwright(log, "train", runs.config_file(data, run, train__steps=150), "--procs", "2")
    runs.wait_for_step(run, 4)
    with unchangeable(run / "status.json"):
        assert process.wait(timeout=240) == 1
        assert max(runs.losses(run)) == 150, "training continued to its end"
        assert "Traceback" not in log.read_text()
        (error,) = re.findall("error: .*", log.read_text())
        assert f"{run / 'status.json'} cannot be written ({os.strerror(errno.EPERM)})" in error
        assert runs.status(run)["state"] == "running", "nothing else could be written"
        assert json.loads(runs.succeed("status", run, "--json").stdout)["state"] == "failed"
