"""Metrics of objectives, and the time of a step on a CPU; tests/gpu/test_step_time.py has a GPU."""

import math
import time

import pytest
import torch

from pretrain.engine import Instant, LossSums
from pretrain.loop.step_metrics import objective_metrics
from tests.support.configs import least_config


def test_a_cpu_works_with_the_host():
    cpu = torch.device("cpu")
    began = Instant(cpu)
    time.sleep(0.05)
    ended = Instant(cpu)
    assert 0.05 <= ended.seconds_since(began) < 5
    assert began.seconds_since(began) == 0
    assert began.is_reached


def test_losses_of_objectives_are_weighted_and_those_without_predictions_are_left_out():
    mixture = [{"kind": "clm", "share": 0.25}, {"kind": "mlm", "share": 0.75, "weight": 2.0}]
    config = least_config(objective=mixture)  # masked rows come first
    masked, causal = LossSums(30.0, 4.0, 10.0, 5.0), LossSums(40.0, 2.0, 20.0, 20.0)
    found = objective_metrics("train", config, 0, (0.75, 0.25), [masked, causal])
    of_mlm = {"train/loss/mlm": 6.0, "train/masked_accuracy/mlm": 0.4}
    of_clm = {"train/loss/clm": 2.0, "train/masked_accuracy/clm": 0.1}
    whole = {"train/loss": 2.0 * 6.0 + 0.25 * 2.0, "train/masked_accuracy": 6 / 30}
    assert found == pytest.approx(whole | of_mlm | of_clm)
    later = objective_metrics("eval", config, 1, (1.0, 0.0), [masked, LossSums(0.0, 0.0, 0.0, 0.0)])
    assert set(later) == {"eval/loss", "eval/masked_accuracy", "eval/loss/mlm", "eval/masked_accuracy/mlm"}
    found = objective_metrics("eval", least_config(), 0, (), [LossSums(0.0, 0.0, 0.0, 0.0)])  # of one short document
    assert found == pytest.approx({"eval/loss": math.nan, "eval/masked_accuracy": math.nan}, nan_ok=True)
