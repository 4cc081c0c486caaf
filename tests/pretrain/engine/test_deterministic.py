"""run.deterministic: two trainings give the same bits, and libraries are told before they read their settings.

tests/gpu/test_engine.py does the same on a GPU.
"""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import pretrain.engine
from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.data import Batch
from pretrain.engine import Engine
from pretrain.engine.resharding import local_pieces
from pretrain.kernels import operations
from pretrain.model import EncoderShape
from pretrain.train import run_rank
from tests.support import engine_steps
from tests.support.batches import batch_of
from tests.support.engine_steps import model, take_step
from tests.support.ranks import check_on_ranks

DETERMINISTIC = True  # of the group, see tests.support.rank_process
# Documents of several blocks of keys: their sums are what a GPU may add in any order.
ROWS, SEQ_LEN, PREDICTED, STEPS = 4, 512, 77, 4
SHAPE = EncoderShape(vocab_size=101, layers=2, hidden=128, heads=2, intermediate=256, max_positions=SEQ_LEN, pad_id=0)
RUNS = [("fp32", 0, "bert"), ("bf16", 1, "bert"), ("bf16", 2, "modernbert")]  # precision, ZeRO stage, model


def config(precision: str, stage: int) -> Config:
    run, data = {"dir": "unused", "deterministic": True}, {"train": "unused", "seq_len": SEQ_LEN}
    return engine_steps.config(precision, str(stage), run=run, data=data)


def batch(step: int) -> Batch:
    """Rows of one document each."""
    rng = np.random.default_rng([step, dist.get_rank()])
    columns = np.stack([np.sort(rng.choice(SEQ_LEN, PREDICTED, replace=False)) for _ in range(ROWS)])
    tokens = rng.integers(5, SHAPE.vocab_size, size=(ROWS, SEQ_LEN))
    return batch_of(tokens, rng.integers(5, SHAPE.vocab_size, size=columns.shape), columns)


def trained(precision: str, stage: int, arch: str, path: str) -> tuple[list[list[float]], list[Tensor]]:
    """Losses, and this rank's fp32 weights with their optimizer state."""
    torch.compiler.reset()
    encoder = model(shape=replace(SHAPE, arch=arch))
    encoder.use(operations("fused" in path), graph_shapes=int("compiled" in path))
    engine = Engine(config(precision, stage), encoder)
    losses = [take_step(engine, [batch(step)]) for step in range(STEPS)]
    state = engine.deepspeed.basic_optimizer.state
    tensors = [each for flat, _ in local_pieces(engine.deepspeed) for each in (flat, *state[flat].values())]
    copies = [each.detach().clone() for each in tensors]
    engine.release()
    return losses, copies


def check(path: str) -> None:
    assert torch.are_deterministic_algorithms_enabled()
    # Libraries read them when the group is made, and at the first product.
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    for run in RUNS:
        (losses, state), (losses_again, state_again) = trained(*run, path), trained(*run, path)
        assert losses == losses_again, (run, losses, losses_again)
        assert len(state) == len(state_again) > 1
        assert all(map(torch.equal, state, state_again)), run


def test_two_trainings_give_the_same_bits():
    check_on_ranks(check, 2, "plain")


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["run.deterministic=true"], True),
        ([], False),
        (["run.deterministic=perhaps"], False),  # the ranks report it once they can talk to each other
    ],
)
def test_the_group_is_made_for_deterministic_sums(overrides, wanted, tmp_path, monkeypatch):
    joined = []

    def refuse(deterministic: bool) -> None:
        joined.append(deterministic)
        raise UserError("no group")

    monkeypatch.setattr(pretrain.engine, "init_distributed", refuse)
    config = tmp_path / "config.yaml"
    config.write_text(f"run: {{dir: {tmp_path}}}\ndata: {{train: x}}\ntrain: {{steps: 1}}\n")
    assert run_rank(config, overrides) == 1
    assert joined == [wanted]
