"""MaskedStream in transformers.Trainer, accelerate, a loop with accelerate, and Lightning: killed, and resumed."""

import os
import subprocess
import sys

import pytest

from tests.conformance.stream_training import STEPS, TRAINERS
from tests.support import runs


def train(trainer, data, out, kill=0):
    command = [sys.executable, "-m", "tests.conformance.stream_training", trainer, str(data), str(out)]
    done = subprocess.run(command, env=os.environ | {"KILL": str(kill)}, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_killed_training_goes_on_with_the_next_batch(trainer, tmp_path):
    data = runs.tiny_data(tmp_path / "data") / "train"
    code, said = train(trainer, data, tmp_path / "whole")
    assert code == 0, said
    wanted = (tmp_path / "whole" / "batches.txt").read_text().splitlines()
    assert [int(line.split()[0]) for line in wanted] == [*range(1, STEPS + 1)]
    assert len({line.split()[1] for line in wanted}) == STEPS
    code, said = train(trainer, data, tmp_path / "killed", kill=7)
    assert code == -9, said
    code, said = train(trainer, data, tmp_path / "killed")
    assert code == 0, said
    batches = (tmp_path / "killed" / "batches.txt").read_text().splitlines()
    assert batches == wanted[:6] + wanted[4:]  # the last state was saved after step 4
    losses = [float((tmp_path / run / "losses.json").read_text()) for run in ("whole", "killed")]
    assert losses[0] == losses[1]
