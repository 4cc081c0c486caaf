"""The feed to a GPU: batches arrive unchanged while the sender continues; needs a GPU."""

from dataclasses import replace

import numpy as np
import torch

from pretrain.data import DeviceFeed
from tests.support.batches import batches

ARRAYS = ("tokens", "positions", "cu_seqlens", "masked_positions", "labels")


def test_batches_arrive_in_order_while_the_device_is_busy():
    """Host arrays are overwritten as soon as the feed returns, and buffers are given out again and again."""
    feed = DeviceFeed(torch.device("cuda"))
    (template,) = batches()
    busy = torch.zeros(8192, 8192, device="cuda")
    sent, arrived = [], []
    for number in range(50):
        arrays = {name: getattr(template, name) + number for name in ARRAYS}
        sent.append({name: array.copy() for name, array in arrays.items()})
        with torch.cuda.stream(feed.stream):  # the copies are late, so only waiting for them gives the right tensors
            busy = busy @ busy
        fed = feed(replace(template, **arrays))
        for array in arrays.values():
            array[:] = -7
        waited = fed.wait()
        arrived.append({name: getattr(waited, name).clone() for name in ARRAYS})
        del fed, waited
    for wanted, found in zip(sent, arrived, strict=True):
        for name in ARRAYS:
            np.testing.assert_array_equal(found[name].cpu().numpy(), wanted[name])
