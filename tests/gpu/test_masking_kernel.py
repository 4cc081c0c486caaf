"""Masking kernel on a GPU: the bits of the reference, also in a captured graph, and no synchronization.

tests/pretrain/masking/test_masking_kernel.py compares more kinds of streams in Triton's interpreter.
"""

import os

import pytest
import torch

from pretrain.masking import Masked
from tests.pretrain.test_philox import VECTORS
from tests.support.device_masks import (
    ROW_KINDS,
    STRATEGIES,
    assert_same,
    device_inputs,
    mask_on,
    objective,
    rows_of_all_kinds,
    rows_with_ties,
)

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1 keeps kernels off the GPU"
)


def host(found) -> Masked:
    return Masked(*(tensor.cpu().numpy() for tensor in found))


@pytest.mark.parametrize(("counter", "key", "output"), VECTORS)
def test_published_vectors_of_philox(counter, key, output):
    from tests.support.triton_kernels import philox_words

    assert philox_words(key, [counter[0]], *counter[1:], device="cuda") == [list(output)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seq_len", [10, 128, 509, 1024, 8192])
@pytest.mark.parametrize(("rate", "per"), [(0.15, "unit"), (0.3, "word"), (0.9, "token")])
def test_bits_of_the_oracle(strategy, seq_len, rate, per):
    masking = objective(strategy, rate, seed=seq_len, per=per)
    rows = rows_of_all_kinds(8 * ROW_KINDS, seq_len, seed=seq_len)
    for now in (rate, rate / 2):
        assert_same(mask_on("cuda", masking, rows, now), masking(rows, now))


@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_ties_among_draws(strategy):
    masking = objective(strategy, 0.15)
    rows = rows_with_ties(masking, 0.15, seq_len=1024)
    assert_same(mask_on("cuda", masking, rows, 0.15), masking(rows, 0.15))


@pytest.mark.parametrize("strategy", ["token", "mix"])
def test_a_captured_graph_masks_what_its_tensors_hold(strategy):
    from pretrain.masking.gpu_masking import DeviceMasking

    masking = objective(strategy, 0.3)
    mask = DeviceMasking(masking, torch.device("cuda"))
    first = rows_of_all_kinds(16, 128, seed=0)
    inputs = device_inputs(masking, first, 0.3, "cuda")
    out = mask.empty(16, 128)
    mask(*inputs, out=out)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask(*inputs, out=out)
    for seed, rate in ((0, 0.3), (1, 0.15), (2, 0.01), (3, 0.3)):
        rows = rows_of_all_kinds(16, 128, seed)
        for mine, theirs in zip(inputs, device_inputs(masking, rows, rate, "cuda"), strict=True):
            if mine is not None:
                mine.copy_(theirs)
        for tensor in out:
            tensor.fill_(-7)
        graph.replay()
        assert_same(host(out), masking(rows, rate))


@pytest.mark.parametrize("strategy", ["token", "span"])
def test_the_host_waits_for_nothing(strategy):
    from pretrain.masking.gpu_masking import DeviceMasking

    masking = objective(strategy, 0.3)
    rows = rows_of_all_kinds(16, 128, seed=0)
    mask = DeviceMasking(masking, torch.device("cuda"))
    inputs = device_inputs(masking, rows, 0.3, "cuda")
    mask(*inputs)  # compiles
    busy = torch.zeros(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # catches waits of torch; the event catches waits of a launch
    try:
        for _ in range(20):
            busy = busy @ busy
        before = torch.cuda.Event()
        before.record()
        found = mask(*inputs)
        still_busy = not before.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert still_busy, "the call returned only after the work queued before it"
    assert_same(host(found), masking(rows, 0.3))
