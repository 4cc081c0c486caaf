"""The time of a step on a CPU; tests/gpu/test_step_time.py has a GPU."""

import time

import torch

from pretrain.loop.step_metrics import Instant


def test_a_cpu_works_with_the_host():
    cpu = torch.device("cpu")
    began = Instant(cpu)
    time.sleep(0.05)
    ended = Instant(cpu)
    assert 0.05 <= ended.seconds_since(began) < 5
    assert began.seconds_since(began) == 0
