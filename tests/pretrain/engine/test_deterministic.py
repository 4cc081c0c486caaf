"""run.deterministic: every operation of a training step has a form that gives the same bits each time."""

import os

import pytest
import torch

from pretrain.config import OptimConfig
from pretrain.engine.engine import make_deterministic
from pretrain.model import Encoder, EncoderShape
from pretrain.optim import build_optimizer
from tests.support.batches import SEQ_LEN, batches


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    make_deterministic()
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def trained() -> dict[str, torch.Tensor]:
    shape = EncoderShape(vocab_size=101, layers=2, hidden=32, heads=2, intermediate=64, max_positions=SEQ_LEN, pad_id=0)
    encoder = Encoder(shape)
    encoder.initialize(0)
    optimizer = build_optimizer(encoder, OptimConfig())
    (batch,) = batches()
    arrays = (batch.tokens, batch.positions, batch.cu_seqlens, batch.masked_positions, batch.labels)
    inputs = [torch.from_numpy(array) for array in arrays]
    for _ in range(3):
        encoder(*inputs, seq_len=SEQ_LEN).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return encoder.state_dict()


def test_a_step_runs_and_repeats_itself(deterministic):
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    first, second = trained(), trained()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
