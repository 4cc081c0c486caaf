"""Layers that are computed again in the backward pass: the same gradients bit for bit, and the memory that it saves."""

import pytest
import torch

from pretrain.model import Encoder, EncoderCosts, EncoderShape
from tests.support.streams import ARCHS, shape_of, stream

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


@pytest.mark.parametrize(("arch", "figures"), [("bert", [4.3, 4.4, 0.32, 0.75]), ("modernbert", [7.0, 7.0, 0.32, 1.1])])
def test_memory_of_a_base_model(arch, figures):
    """The figures of docs/model.md, in GiB. tests/pretrain/planning/test_memory.py compares the formula with passes."""
    costs = EncoderCosts(EncoderShape(arch=arch, vocab_size=90, max_positions=512, pad_id=0, **BASE))
    passes = [costs.activations(32 * 512, 2000, 512, 2, checkpointing=way) for way in (False, True)]
    assert [each / 2**30 for of in passes for each in (of.kept, of.peak)] == pytest.approx(figures, rel=0.06)
