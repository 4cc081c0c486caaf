"""One rank: two trainings with run.deterministic give the same losses, weights and optimizer state, bit for bit.

`python -m tests.pretrain.engine.repeat_worker PATH`, on a GPU where DS_ACCELERATOR says so. PATH is plain, fused,
compiled or compiled-fused.
"""

import os
import sys
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from data_prep.common.processes import leave
from pretrain.config import Config
from pretrain.data import Batch
from pretrain.engine import Engine, init_distributed
from pretrain.engine.resharding import local_pieces
from pretrain.kernels import operations
from pretrain.model import Encoder, EncoderShape
from tests.pretrain.engine.gradients_worker import take_step
from tests.pretrain.engine.varying_worker import LR
from tests.support.batches import batch_of

# Documents of several blocks of keys: their sums are what a GPU may add in any order.
ROWS, SEQ_LEN, PREDICTED, STEPS = 4, 512, 77, 4
SHAPE = EncoderShape(vocab_size=101, layers=2, hidden=128, heads=2, intermediate=256, max_positions=SEQ_LEN, pad_id=0)
RUNS = [("fp32", 0, "bert"), ("bf16", 1, "bert"), ("bf16", 2, "modernbert")]  # precision, ZeRO stage, model


def config(precision: str, stage: int) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": "unused", "deterministic": True},
            "data": {"train": "unused", "seq_len": SEQ_LEN},
            "optim": {"grad_clip": 0.5},
            "train": {"steps": 1, "precision": precision},
            "zero": {"stage": stage},
        }
    )


def batch(step: int) -> Batch:
    """Rows of one document each."""
    rng = np.random.default_rng([step, dist.get_rank()])
    columns = np.stack([np.sort(rng.choice(SEQ_LEN, PREDICTED, replace=False)) for _ in range(ROWS)])
    tokens = rng.integers(5, SHAPE.vocab_size, size=(ROWS, SEQ_LEN))
    return batch_of(tokens, rng.integers(5, SHAPE.vocab_size, size=columns.shape), columns)


def trained(precision: str, stage: int, arch: str, path: str) -> tuple[list[list[float]], list[Tensor]]:
    """Losses, and this rank's fp32 weights with their optimizer state."""
    torch.compiler.reset()
    model = Encoder(replace(SHAPE, arch=arch))
    model.initialize(0)
    model.use(operations("fused" in path), graph_shapes=int("compiled" in path))
    engine = Engine(config(precision, stage), model)
    losses = [take_step(engine, [batch(step)], LR) for step in range(STEPS)]
    state = engine.deepspeed.basic_optimizer.state
    found = [each for flat, _ in local_pieces(engine.deepspeed) for each in (flat, *state[flat].values())]
    copies = [each.detach().clone() for each in found]
    engine.release()
    return losses, copies


def check(path: str) -> None:
    assert torch.are_deterministic_algorithms_enabled()
    for run in RUNS:
        (losses, state), (losses_again, state_again) = trained(*run, path), trained(*run, path)
        assert losses == losses_again, (run, losses, losses_again)
        assert len(state) == len(state_again) > 1
        assert all(map(torch.equal, state, state_again)), run


if __name__ == "__main__":
    init_distributed(deterministic=True)
    # Libraries read them when the group is made, and at the first product.
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    torch.set_num_threads(1)
    check(sys.argv[1])
    leave(0)
