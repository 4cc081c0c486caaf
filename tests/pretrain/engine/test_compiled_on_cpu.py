"""A compiled model on a CPU, without run.deterministic: two trainings in two threads give the same bits."""

import shutil

import numpy as np
import pytest
import torch

from pretrain.engine import Engine
from pretrain.kernels import operations
from pretrain.model import EncoderShape
from tests.support import engine_steps
from tests.support.batches import batch_of
from tests.support.ranks import check_on_ranks

# Few ids in many slots: both threads add to the same rows of the embedding.
ROWS, SEQ_LEN, PREDICTED, STEPS = 32, 128, 20, 6
SHAPE = EncoderShape(vocab_size=16, layers=1, hidden=64, heads=2, intermediate=64, max_positions=SEQ_LEN, pad_id=0)


def trained() -> list[list[float]]:
    encoder = engine_steps.model(shape=SHAPE)
    encoder.use(operations(False), graph_shapes=1)
    train = {"steps": STEPS, "precision": "fp32", "compile": True}
    engine = Engine(engine_steps.config("fp32", "0", train=train), encoder)
    rng = np.random.default_rng(0)
    columns = np.sort(rng.permuted(np.tile(np.arange(SEQ_LEN), (ROWS, 1)), axis=1)[:, :PREDICTED])
    tokens, labels = rng.integers(5, 16, (ROWS, SEQ_LEN)), rng.integers(5, 16, columns.shape)
    steps = [engine_steps.take_step(engine, [batch_of(tokens, labels, columns)]) for _ in range(STEPS)]
    engine.release()
    return steps


def check() -> None:
    torch.set_num_threads(2)
    first, again = trained(), trained()
    assert first == again
    assert torch.are_deterministic_algorithms_enabled()  # without, the losses differ in most trainings, not in all


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++ on a CPU")
def test_two_trainings_give_the_same_bits():
    check_on_ranks(check, 1)
