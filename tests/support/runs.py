"""Real training runs on a tiny data set, through the command line."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from pretrain.run import Entry, JournalReader
from tests.support.datasets import make_dataset
from tests.support.empty_store import copy_empty_store
from tests.support.forked import ROOT, Completed, Forked, fits, run_forked

VOCAB_SIZE = 200


def tiny_data(folder: Path) -> Path:
    """A data set where each token has two likely successors: folder/train and folder/valid."""
    rng = np.random.default_rng(0)
    successors = rng.integers(5, VOCAB_SIZE, size=(VOCAB_SIZE, 2))

    def document() -> list[int]:
        ids = [int(rng.integers(5, VOCAB_SIZE))]
        for choice in rng.integers(0, 2, size=int(rng.integers(5, 120))):
            ids.append(int(successors[ids[-1], choice]))
        return ids

    for name, documents in (("train", 400), ("valid", 30)):
        make_dataset(folder / name, [document() for _ in range(documents)], VOCAB_SIZE, block_tokens=4000)
    return folder


def tiny_config(data: Path, run: Path, **overrides: Any) -> dict[str, Any]:
    """A config that trains in seconds; `section__key=value` overrides, or `key=value` at the top."""
    config: dict[str, Any] = {
        "run": {"dir": str(run), "seed": 7},
        "data": {"train": str(data / "train"), "valid": str(data / "valid"), "seq_len": 32},
        "model": {"size": {"layers": 2, "hidden": 32, "heads": 2}},
        "optim": {"lr": 2e-3},
        "schedule": {"warmup_steps": 5},
        "train": {"steps": 24, "global_batch_size": 8, "precision": "fp32"},
        "checkpoint": {"every_steps": 8},
        "eval": {"every_steps": 12, "rows": 50},
        "track": {"uri": f"sqlite:///{run.parent}/mlflow.db"},
    }
    for key, value in overrides.items():
        section, _, name = key.partition("__")
        if name:
            config.setdefault(section, {})[name] = value
        else:
            config[section] = value
    return config


def write_config(path: Path, config: dict[str, Any]) -> Path:
    """The config as a YAML file, and an empty MLflow database where it wants one: making that takes seconds a run."""
    path.write_text(yaml.safe_dump(config))
    address = config["track"]["uri"]
    database = Path(address.removeprefix("sqlite:///"))
    if fits(environment()) and address.startswith("sqlite:///") and not database.exists():
        copy_empty_store(database)
    return path


def config_file(data: Path, run: Path, **overrides: Any) -> Path:
    """The config of `tiny_config` in a file beside the run folder, which has its name."""
    return write_config(run.with_suffix(".yaml"), tiny_config(data, run, **overrides))


def trained(data: Path, run: Path, procs: int = 1, **overrides: Any) -> Path:
    """The folder of a run with the config of `tiny_config`, trained to its end."""
    succeed("train", config_file(data, run, **overrides), "--procs", str(procs))
    return run


def environment() -> dict[str, str]:
    """The environment for `maskwright` in a test: from any working folder, one thread a process."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def maskwright(*arguments: str | Path, cwd: Path | None = None, real: bool = False) -> Completed:
    """Run the command line to its end, in forked processes where that makes no difference, or in `real` ones."""
    words = ["launchers.cli", *map(str, arguments)]
    if fits(environment()) and not real:
        return run_forked(words, environment(), cwd or ROOT, timeout=300)
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, env=environment(), cwd=cwd or ROOT, capture_output=True, text=True, timeout=300)


def start_maskwright(log: Path, *arguments: str | Path, real: bool = False) -> Forked | subprocess.Popen[bytes]:
    """Start the command line, its output going to `log`; forked or `real` as above."""
    words = ["launchers.cli", *map(str, arguments)]
    if fits(environment()) and not real:
        return Forked(words, environment(), ROOT, log)
    with open(log, "ab") as output:
        command = [sys.executable, "-m", *words]
        return subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


def succeed(*arguments: str | Path, cwd: Path | None = None, real: bool = False) -> Completed:
    """As `maskwright`, of a command that must succeed."""
    done = maskwright(*arguments, cwd=cwd, real=real)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def journal(run: Path) -> list[Entry]:
    """The valid lines of every step, with their batches."""
    return JournalReader(run / "journal.jsonl").entries(batches=True)


def metric(run: Path, name: str) -> dict[int, float]:
    """The valid values of a metric, by step."""
    return {entry.step: entry.metrics[name] for entry in journal(run) if name in entry.metrics}


def losses(run: Path) -> dict[int, float]:
    """The valid loss of every step in the journal."""
    return metric(run, "train/loss")


def batches(run: Path) -> dict[int, Any]:
    """Of every step, where its batch begins, and its checksum."""
    return {entry.step: entry.batch for entry in journal(run) if entry.batch}


def wait_for_step(run: Path, step: int, seconds: float = 240) -> None:
    """Wait until the journal holds a step."""
    wait_for(lambda: (run / "journal.jsonl").exists() and max(losses(run), default=0) >= step, seconds)


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not hold within {seconds} s"
        time.sleep(0.02)


def ranks_of(config: Path) -> dict[int, psutil.Process]:
    """The training processes of a config, by local rank."""
    ranks = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "pretrain.train" in command and str(config) in command and "--num_gpus" not in command:
            ranks |= {int(part.split("=")[1]): process for part in command if part.startswith("--local_rank=")}
    return ranks


def status(run: Path) -> dict[str, Any]:
    """status.json."""
    return json.loads((run / "status.json").read_text())
