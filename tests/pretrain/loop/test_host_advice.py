"""The advice of a run whose GPU waits for its host. A CPU stands in for the GPU, and never gives it by itself."""

import sys

import pytest

from tests.support import runs
from tests.support.ranks import run_ranks


@pytest.mark.parametrize("device", ["cpu", "fast_gpu", "busy_gpu"])
def test_advice_is_printed_once(tmp_path, device):
    data, run, report = runs.tiny_data(tmp_path), tmp_path / "run", tmp_path / "stderr.txt"
    settings = {"train__steps": 160, "eval__every_steps": 50, "checkpoint__every_steps": 50, "track__uri": "none"}
    config = runs.write_config(tmp_path / "c.yaml", runs.tiny_config(data, run, **settings))
    run_ranks(__name__, 1, device, str(report), "--config", str(config))
    assert report.read_text().count("warning: the GPU waits for the host") == (device == "fast_gpu")


if __name__ == "__main__":  # a rank of the run
    from pretrain.engine import Engine, Instant, StepClock
    from pretrain.train import main

    device = sys.argv.pop(1)
    StepClock.waited = property(lambda self: 0.0, lambda self, seconds: None)
    if device != "cpu":
        Engine.host_runs_ahead = property(lambda self: True)
    if device == "busy_gpu":
        Instant.is_reached = property(lambda self: False)
    with open(sys.argv.pop(1), "w") as sys.stderr:
        sys.exit(main())
