"""Output that cannot be written: the reader of a pipe has ended, a terminal is closed, or the disk is full."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.common.output import guard_output
from data_prep.format import Dataset
from pretrain.run import RunFolder
from tests.support import prep, runs
from tests.support.forked import ROOT

FULL = Path("/dev/full")


@pytest.fixture
def pipe():
    """The path of a pipe, and its reader, which the test closes."""
    reader, writer = os.pipe()
    yield Path(f"/proc/{os.getpid()}/fd/{writer}"), reader
    os.close(writer)


@pytest.fixture
def lost_reader(pipe):
    """The path of a pipe that nobody reads."""
    os.close(pipe[1])
    return pipe[0]


def test_training_goes_on_without_a_reader(data, tmp_path, pipe):
    """As with `maskwright train CONFIG 2>&1 | head -1`, or a Ctrl-C that ends `tee` before the checkpoint is saved."""
    output, reader = pipe
    config = runs.config_file(data, tmp_path / "run", train__steps=100)
    process = runs.start_maskwright(output, "train", config, "--procs", "2")
    text = b""
    while b"step 1/" not in text:
        text += os.read(reader, 1000)
    os.close(reader)
    assert process.wait(240) == 0
    assert runs.status(tmp_path / "run") | {"state": "completed", "step": 100} == runs.status(tmp_path / "run")
    assert [*runs.losses(tmp_path / "run")] == list(range(1, 101))


def test_training_goes_on_while_the_disk_of_its_log_is_full(data, tmp_path):
    process = runs.start_maskwright(FULL, "train", runs.config_file(data, tmp_path / "run", train__steps=4))
    assert process.wait(240) == 0
    assert runs.status(tmp_path / "run")["step"] == 4


def test_a_preparation_goes_on_without_a_reader(tmp_path, tokenizer, lost_reader):
    (source := tmp_path / "a.jsonl").write_bytes(prep.jsonl(prep.texts(0, 50)))
    process = runs.start_maskwright(
        lost_reader, "prep", "run", "--input", source, "--tokenizer", tokenizer, "--out", tmp_path / "out"
    )
    assert process.wait(120) == 0
    assert sum(shard.documents for shard in Dataset(tmp_path / "out").manifest.shards) == 50


def test_a_follower_ends_with_its_reader(tmp_path, lost_reader):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    with folder.lock():
        folder.write_status("running", 3, 9, "training", "none")
        assert runs.start_maskwright(lost_reader, "status", folder.path, "--follow").wait(60) == 0


@pytest.mark.parametrize(
    "words", [("config", "show", "configs/demo.yaml"), ("config", "show", "--schema"), ("--help",)]
)
def test_a_result_that_cannot_be_written_is_an_error(words, tmp_path):
    """With a buffer, the error comes when the command ends."""
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "launchers.cli", *words]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        ended = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: Cannot write the output: no space left on device. Make room")
    assert len(ended.stderr.splitlines()) == 1


def test_a_process_without_standard_output_writes_nowhere(monkeypatch):
    """Python has no stream after `>&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    guard_output()
    for stream in (sys.stdout, sys.stderr):
        print("čára", file=stream, flush=True)


CLOSED = """
import sys, time
from data_prep.common.output import guard_output
guard_output()
sys.stdin.readline()
for stream in (sys.stdout, sys.stderr):
    print("a line", file=stream, flush=True)
    from rich.console import Console
    Console(stderr=stream is sys.stderr).print("[bold]more[/]")
open(sys.argv[1], "w").write("went on")
"""


def test_a_closed_terminal_ends_nothing(tmp_path):
    terminal, end = pty.openpty()
    command = [sys.executable, "-c", CLOSED, str(tmp_path / "done")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=end, stderr=end) as process:
        os.close(end)
        os.close(terminal)
        process.communicate(b"\n", timeout=60)
    assert process.returncode == 0
    assert (tmp_path / "done").read_text() == "went on"
