"""Layers that are computed again in the backward pass: the same gradients bit for bit, and the memory that it saves."""

import pytest
import torch

from pretrain.model import Encoder, EncoderShape
from tests.support.streams import ARCHS, shape_of, stream
from tests.support.tensor_memory import TensorMemory

SEQ_LEN, LENGTHS = 16, [16, 3, 3, 10, 8, 8]
BASE = {"layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("arch", ARCHS)
def test_loss_and_gradients_are_the_same_bits(arch, dropout):
    found = []
    for checkpointing in (False, True):
        model = Encoder(shape_of(arch, layers=3, dropout=dropout))
        model.initialize(3)
        if checkpointing:
            model.checkpoint_layers()
        torch.manual_seed(5)
        loss = model(**stream(LENGTHS), seq_len=SEQ_LEN).loss
        loss.backward()
        after = torch.rand(3)
        found.append([loss.detach(), after, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("arch", "figures"), [("bert", ["4.3", "4.4", "0.32", "0.75"]), ("modernbert", ["7", "7", "0.32", "1.1"])]
)
def test_memory_of_a_base_model(arch, figures):
    """Kept are the inputs of layers: [N, D] each. The rest is one layer's, and what the head and the gradients take.

    `figures` are the figures of docs/model.md, in GiB.
    """
    rows, seq_len = 32, 512
    n, kept, peak = rows * seq_len, {}, {}
    for checkpointing in (False, True):
        shape = EncoderShape(arch=arch, vocab_size=90, max_positions=seq_len, pad_id=0, **BASE)
        model = Encoder(shape, backend="varlen").to("meta", torch.bfloat16)
        if checkpointing:
            model.checkpoint_layers()
        ids = [torch.empty(size, dtype=torch.int64, device="meta") for size in (n, n, 200, 2000, 2000)]
        with TensorMemory(model) as memory:
            loss = model(ids[0], ids[1], ids[2].int(), *ids[3:], seq_len).loss
        kept[checkpointing] = memory.bytes
        with memory:
            loss.backward()
        peak[checkpointing] = memory.peak
    inputs = (BASE["layers"] + 1) * n * BASE["hidden"] * 2
    assert inputs < kept[True] < 1.1 * inputs
    assert kept[False] > 10 * kept[True]
    assert peak[False] > 5 * peak[True]
    assert [f"{each[way] / 2**30:.2g}" for way in (False, True) for each in (kept, peak)] == figures
