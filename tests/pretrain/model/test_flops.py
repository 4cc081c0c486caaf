"""Operations by the formula equal torch's count."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pretrain.loop.step_metrics import FlopsCounter
from pretrain.model import Encoder, EncoderCosts, EncoderShape, peak_tflops
from pretrain.model.model_costs import pairs_seen
from tests.support.streams import ARCHS

SEQ_LEN, ROWS = 32, 3
BASE = EncoderShape(30522, 12, 768, 12, 3072, 512, 0)
LARGE = EncoderShape(30522, 24, 1024, 16, 4096, 512, 0)
MODERN = EncoderShape(50368, 22, 768, 12, 1152, 8192, 0, arch="modernbert")
SIZES = {"vocab_size": 128, "layers": 4, "hidden": 48, "heads": 3, "intermediate": 80, "max_positions": 32, "pad_id": 0}


@pytest.mark.parametrize("arch", ARCHS)
def test_formula_equals_torch_s_counter(arch):
    """Rows of one document each, windows as wide as rows, and the last layer at all slots: nothing is left out."""
    shape = EncoderShape(arch=arch, window=2 * SEQ_LEN, kv_heads=1 if arch == "eurobert" else None, **SIZES)
    encoder = Encoder(shape)
    encoder.initialize(0)
    n = SEQ_LEN * ROWS
    tokens, positions = torch.randint(5, 100, (n,)), torch.arange(SEQ_LEN).repeat(ROWS)
    cu_seqlens = torch.arange(0, n + 1, SEQ_LEN, dtype=torch.int32)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        states = encoder.hidden(tokens, positions, cu_seqlens, SEQ_LEN)
        encoder.logits(states[::8]).sum().backward()
    assert counter.get_total_flops() == EncoderCosts(shape).step_flops(np.full(ROWS, SEQ_LEN), n // 8)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [None, 1, 4, 64])
def test_pairs_are_counted_rightly(causal, reach):
    lengths = np.array([1, 2, 3, 5, 6, 9, 40])

    def sees(token: int, other: int) -> bool:
        return other <= token if causal else reach is None or abs(token - other) <= reach

    counted = sum(sees(i, j) for length in lengths for i in range(length) for j in range(length))
    assert pairs_seen(lengths, reach, causal) == counted


def test_counts_of_the_page_on_speed():
    """GFLOP a token of docs/performance.md's table: a document a row, of whose tokens a share is predicted."""
    cases = [(BASE, 128, 0.15, 0.545), (BASE, 512, 0.15, 0.588), (MODERN, 1024, 0.3, 0.824), (LARGE, 512, 0.15, 1.99)]
    for shape, seq_len, rate, gflop in cases:
        tokens = 1000 * seq_len
        found = EncoderCosts(shape).step_flops(np.full(1000, seq_len), round(rate * tokens)) / tokens / 1e9
        assert float(f"{found:.3g}") == gflop


def test_peaks():
    assert peak_tflops("NVIDIA H100 80GB HBM3") == 989
    assert peak_tflops("NVIDIA H100 PCIe") == 756
    assert peak_tflops("AMD EPYC") is None


def test_utilization_is_of_each_devices_peak():
    """Two devices that could 50 TFLOP/s each, and a step of 12 + 3 * 8 TFLOP in 0.6 s."""
    counter = FlopsCounter(lambda lengths, predictions: 8e12 * predictions, pad=0, peak=50)
    assert counter.metrics(12e12, 3, 0.6, devices=2) == pytest.approx({"speed/tflops": 30, "speed/mfu": 0.6})
    assert set(replace(counter, peak=None).metrics(12e12, 3, 0.6, devices=2)) == {"speed/tflops"}
