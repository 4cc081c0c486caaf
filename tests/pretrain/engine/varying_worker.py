"""One rank: steps whose micro-batches vary in number, rows and sequence length, under every ZeRO stage.

Rank 0 writes, for each stage and precision, the gradients of every step and the weights after the last.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param

from data_prep.common.processes import leave
from pretrain.config import Config
from pretrain.data import Batch
from pretrain.engine import Engine, init_distributed
from pretrain.model import Encoder
from tests.pretrain.engine.gradients_worker import VOCABULARY, model, step_gradients

LR = 1e-2
# (rows, seq_len) of each micro-batch of a rank, step by step.
STEPS = [[(2, 32)], [(1, 16), (3, 8), (2, 16)], [(2, 24), (1, 32)], [(4, 8)]]
# Precision, and ZeRO's stage with what is offloaded.
RUNS = [("fp32", f"{stage}") for stage in range(4)] + [("bf16", f"{stage}") for stage in (1, 2, 3)]
RUNS += [("fp32", "2-cpu"), ("bf16", "1-cpu"), ("bf16", "3-cpu")]


def config(precision: str, zero: str) -> Config:
    offload = "cpu" if zero.endswith("cpu") else "none"
    return Config.model_validate(
        {
            "run": {"dir": "unused"},
            "data": {"train": "unused"},
            "optim": {"eps": 1e-3, "grad_clip": 0.5},  # a large eps: updates follow gradients without jumps
            "train": {"steps": 1, "precision": precision},
            "zero": {"stage": int(zero[0]), "offload": offload, "offload_parameters": zero == "3-cpu"},
        }
    )


def global_batches(step: int, world_size: int) -> list[list[Batch]]:
    """The micro-batches of every rank: random tokens, two documents a row, and fewer predictions in some rows."""
    rng = np.random.default_rng([step, world_size])
    return [[_batch(rng, rows, seq_len) for rows, seq_len in STEPS[step]] for _ in range(world_size)]


def _batch(rng: np.random.Generator, rows: int, seq_len: int) -> Batch:
    slots = rows * seq_len
    ends = [row * seq_len + end for row in range(rows) for end in (int(rng.integers(2, seq_len)), seq_len)]
    cu_seqlens = np.array([0, *ends], dtype=np.int32)
    lengths = np.diff(cu_seqlens)
    predicted = max(2, seq_len // 6)
    places = [row * seq_len + np.sort(rng.choice(seq_len, predicted, replace=False)) for row in range(rows)]
    labels = rng.integers(5, VOCABULARY.size, size=rows * predicted)
    labels[1 :: int(rng.integers(2, 5))] = -100
    return Batch(
        tokens=rng.integers(5, VOCABULARY.size, size=slots),
        positions=np.arange(slots) - np.repeat(cu_seqlens[:-1].astype(np.int64), lengths),
        cu_seqlens=cu_seqlens,
        masked_positions=np.concatenate(places),
        labels=labels,
        seq_len=seq_len,
        n_tokens=slots,
        n_replaced=0,
    )


def weights(encoder: torch.nn.Module, zero: str) -> dict[str, np.ndarray]:
    found = {}
    for name, parameter in encoder.named_parameters():
        full = parameter if zero == "0" else safe_get_full_fp32_param(parameter)
        found[f"after {name}"] = full.detach().numpy().copy()
    return found


def train(precision: str, zero: str) -> dict[str, np.ndarray]:
    encoder: Encoder = model()
    engine = Engine(config(precision, zero), encoder)
    found = {}
    for step in range(len(STEPS)):
        batches = global_batches(step, dist.get_world_size())[dist.get_rank()]
        found |= {f"{step} {name}": value for name, value in step_gradients(engine, batches, LR).items()}
    found |= weights(encoder, zero)
    engine.release()
    return found


if __name__ == "__main__":
    init_distributed()
    torch.set_num_threads(1)
    for precision, zero in RUNS:
        result = train(precision, zero)
        if dist.get_rank() == 0:
            np.savez(Path(sys.argv[1]) / f"{precision}-zero{zero}.npz", **result)
    dist.barrier()
    leave(0)
