"""Output and imports of a start before its first step."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from launchers.watch.run_table import view_runs
from pretrain.distributed import Cores, Threads
from tests.support import runs
from tests.support.forked import ROOT
from tests.support.in_process import complaints, refused

PHASES = ("loading libraries", "reading the data set", "building the model", "first step")
# Packages that no step needs; most take about a second to import.
LATE = (
    *("mlflow.tracking", "torch._dynamo", "torch._inductor", "transformers", "matplotlib", "scipy", "pandas"),
    "pretrain.reporting.html_page",
)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The lines of a real start, each with its seconds; what status.json said meanwhile; and environment.json."""
    folder = tmp_path_factory.mktemp("start")
    run = folder / "run"
    settings = {"train__steps": 3, "schedule__warmup_steps": 1, "optim": {"name": "muon", "lr": 2e-3}}
    config = runs.config_file(runs.tiny_data(folder), run, **settings)
    began = time.monotonic()
    command = [sys.executable, "-m", "launchers.cli", "train", str(config), "--procs", "1"]
    environment = runs.environment() | {"PYTHONPROFILEIMPORTTIME": "1"}
    del environment["OMP_NUM_THREADS"]
    lines: list[tuple[float, str]] = []
    statuses = []
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            lines.append((time.monotonic() - began, line.rstrip("\n")))
            if re.match(r" *\d+\.\d s  ", line):
                statuses.append(view_runs([run])[0])
    assert process.returncode == 0
    return lines, statuses, json.loads((run / "environment.json").read_text())


def test_a_start_says_at_once_and_in_each_phase_what_it_does(started):
    lines, statuses, _ = started
    said = [(seconds, line) for seconds, line in lines if not line.startswith("import time:")]
    seconds, first = said[0]
    assert first.startswith("Starting ")
    assert first.endswith(f"run with 1 process, {Threads.of(1, {})}.")
    assert seconds < 20  # a second or two where nothing else runs
    phases = [re.sub(r"^ *\d+\.\d s  ", "", line) for _, line in said[1:5]]
    assert phases == list(PHASES)
    assert said[5][1] == "attention sdpa (the device is cpu, not cuda), kernels plain (no GPU)"
    assert said[6][1].startswith("step 1/3 |")
    assert {seen.state for seen in statuses} == {"starting"}
    assert statuses[0].reason == "loading libraries"


def test_threads_attention_and_kernels_are_recorded(started):
    """The threads are those that the start names."""
    _, _, environment = started
    assert environment["threads"] == Cores.usable().number
    assert (environment["attention"], environment["kernels"]) == ("sdpa", "plain")
    assert environment["kernels_reason"] == "no GPU"
    assert environment["kernels_made_with"].startswith("cpu, torch ")
    assert environment["micro_batch_size"] >= 1
    assert environment["attention_reason"] == "the device is cpu, not cuda"


def test_nothing_slow_is_imported_before_the_first_step(started):
    lines, _, _ = started
    first = next(number for number, (_, line) in enumerate(lines) if line.startswith("step 1/3 |"))
    imported = {line.split("|")[-1].strip() for _, line in lines[:first] if line.startswith("import time:")}
    assert "deepspeed.runtime.engine" in imported
    assert imported.isdisjoint(LATE), imported.intersection(LATE)


def test_a_refused_start_leaves_a_run_that_has_not_started(data, tmp_path):
    run = tmp_path / "run"
    flash = ("train.precision=bf16", "train.flash_attention=3")  # its package is not installed
    done = runs.maskwright("train", runs.config_file(data, run), *flash)
    (line,) = complaints(done.stderr)
    wanted = "error: train.flash_attention is 3, which needs Hopper GPUs and the package flash_attn_3"
    assert (done.returncode, line[: len(wanted)]) == (1, wanted)
    assert refused("status", run).endswith(f"{run} has no status.json: its run has not started. Start it.")


def test_ctrl_c_while_a_command_is_loading_prints_no_traceback(tmp_path):
    """A module that the command imports first raises what Ctrl-C raises at that moment."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    words = [sys.executable, "-m", "launchers.cli", "train", "none.yaml"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
