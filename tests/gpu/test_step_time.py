"""The time of a step on a GPU is the device's, even if the host is far ahead."""

import time

import torch

from pretrain.engine import Instant

CYCLES = 500_000_000  # about 0.3 s


def test_a_step_lasts_as_long_as_the_device_works():
    device = torch.device("cuda")
    torch.cuda.synchronize()
    begin = time.monotonic()
    began = Instant(device)
    torch.cuda._sleep(CYCLES)
    ended = Instant(device)
    launched = time.monotonic() - begin
    reached = ended.is_reached
    torch.cuda.synchronize()
    finished = time.monotonic() - begin
    assert launched < finished / 2, "the device must work behind the host for this test"
    assert not reached
    assert ended.is_reached
    assert launched < ended.seconds_since(began) <= finished
