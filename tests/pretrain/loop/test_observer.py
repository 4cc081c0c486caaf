"""A report from outside, one class that a run gets with the start of its rank; and advice of a run to its user."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pretrain.run import JournalReader
from tests.support import runs
from tests.support.ranks import run_ranks


class LossFile:
    """Writes the loss of each step to a file, and a last line when the run has ended."""

    def __init__(self, path: Path):
        self._file = path.open("w")

    def record(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None) -> None:
        if batch:
            print(json.dumps([step, metrics["train/loss"], batch["rows"]]), file=self._file)

    def close(self) -> None:
        print("end", file=self._file)
        self._file.close()


@pytest.mark.parametrize("device", ["cpu", "fast_gpu", "busy_gpu"])
def test_an_observer_sees_each_step_and_a_gpu_that_waits_for_the_host_is_told(data, tmp_path, device):
    """A CPU stands in for the GPU, and never gives the advice by itself."""
    run, report, errors = tmp_path / "run", tmp_path / "losses.txt", tmp_path / "stderr.txt"
    settings = {"train__steps": 110, "eval__every_steps": 55, "checkpoint__every_steps": 55, "track__uri": "none"}
    config = runs.config_file(data, run, **settings)
    run_ranks(__name__, 1, device, str(report), str(errors), "--config", str(config))
    *lines, last = report.read_text().splitlines()
    losses = runs.losses(run)
    assert [json.loads(line) for line in lines] == [[step, losses[step], 8] for step in range(1, 111)]
    assert last == "end"
    assert "eval/loss" in JournalReader(run / "journal.jsonl").entries()[-1].metrics
    assert errors.read_text().count("warning: the GPU waits for the host") == (device == "fast_gpu")


if __name__ == "__main__":  # a rank of the run
    from pretrain.engine import Engine, Instant, StepClock
    from pretrain.train import main

    device, report, errors = (sys.argv.pop(1) for _ in range(3))
    StepClock.waited = property(lambda self: 0.0, lambda self, seconds: None)
    if device != "cpu":
        Engine.host_runs_ahead = property(lambda self: True)
    if device == "busy_gpu":
        Instant.is_reached = property(lambda self: False)
    with open(errors, "w") as sys.stderr:
        sys.exit(main([LossFile(Path(report))]))
