"""One rank: the gradients of a global batch under every ZeRO stage, offload and accumulation, written by rank 0.

Twice: of masked tokens, and of a mixture whose predictions have weights.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad

from data_prep.common.processes import leave
from pretrain.config import Config, StageSettings
from pretrain.data import Batch, BatchStage, DeviceFeed, Loader
from pretrain.engine import Engine, init_distributed
from pretrain.masking import IGNORED, Masked, Rows, Vocabulary
from pretrain.model import Encoder, EncoderShape
from pretrain.objectives import Objective, objective_of
from tests.support.memory_blocks import MemoryBlocks, memory_loader

SEQ_LEN, GLOBAL_ROWS = 32, 16
ACCUMULATIONS = (1, 2, 4)
ZERO = [(stage, "none") for stage in range(4)] + [(stage, "cpu") for stage in (1, 2, 3)]
SHAPE = EncoderShape(vocab_size=101, layers=2, hidden=32, heads=2, intermediate=64, max_positions=SEQ_LEN, pad_id=0)
VOCABULARY = Vocabulary(size=101, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
# Few rows are full, so predictions differ from row to row, and a mean of means differs from the mean.
LENGTHS = [[30, 28, 17, 16, 25, 23, 19, 18, 22, 27, 16]]
OBJECTIVES: dict[str, Any] = {
    "masked": "mlm",
    "mixture": [{"kind": "clm", "share": 0.5, "weight": 3.0}, {"kind": "mlm", "share": 0.5}],
}


class Weighted:
    """Weights for the predictions of an objective: 0.5 for ids below 50, and 2 for others."""

    def __init__(self, inner: Objective):
        self.inner, self.flags, self.slots = inner, inner.flags, inner.slots

    def __call__(self, rows: Rows, rate: float) -> Masked:
        masked = self.inner(rows, rate)
        weights = np.where(masked.labels < 50, 0.5, 2.0) * (masked.labels != IGNORED)
        return replace(masked, weights=weights.astype(np.float32))


def loader(stage: BatchStage, rank: int, name: str = "masked") -> Loader:
    objective = objective_of(config(1, 1, 1, "none", name), VOCABULARY, 3, "train")
    chosen = objective if name == "masked" else Weighted(objective)
    return memory_loader([MemoryBlocks(LENGTHS)], VOCABULARY, chosen, [stage], rank, 3, 1)


def model() -> Encoder:
    encoder = Encoder(SHAPE)
    encoder.initialize(0)
    return encoder


def config(stage: int, accumulation: int, world_size: int, offload: str, name: str = "masked") -> Config:
    return Config.model_validate(
        {
            "run": {"dir": "unused"},
            "data": {"train": "unused", "seq_len": SEQ_LEN},
            "objective": OBJECTIVES[name],
            "train": {
                "steps": 1,
                "global_batch_size": GLOBAL_ROWS,
                "micro_batch_size": GLOBAL_ROWS // world_size // accumulation,
                "precision": "fp32",
            },
            "zero": {"stage": stage, "offload": offload, "offload_parameters": stage == 3 and offload == "cpu"},
        }
    )


def take_step(engine: Engine, batches: list[Batch], lr: float, group_norms: bool = False) -> list[float]:
    """An optimizer step: correct predictions, gradient norm, the loss of each objective, gradient norms of parts."""
    of_objectives = [one.weight or 1.0 for one in engine.config.objectives]
    n = len(of_objectives)
    weights = engine.total(np.sum([batch.totals(n)[1] for batch in batches], axis=0).tolist())
    feed = DeviceFeed(engine.device)
    on_device = [feed(batch).wait() for batch in batches]
    values = engine.step(on_device, weights, lr, group_norms, objectives=of_objectives)
    norms = values[2 * n + 2 :].tolist()
    return [values[n : 2 * n].sum().item(), values[2 * n].item(), *(values[:n] / weights).tolist(), *norms]


def step_gradients(engine: Engine, batches: list[Batch], lr: float) -> dict[str, np.ndarray]:
    """Take a step; its full gradients by parameter, its loss a prediction of each objective ("loss") and gradient norm
    ("norm"), and the norms of the model's parts ("norm of layer_0")."""
    found: dict[str, Any] = {}
    inner: Any = engine.deepspeed
    inner_step = inner.step

    def record_then_step() -> None:
        for name, parameter in inner.module.named_parameters():
            full = parameter.grad if inner.zero_optimization_stage() == 0 else safe_get_full_grad(parameter)
            found[name] = full.detach().float().numpy().copy()
        inner_step()

    inner.step = record_then_step
    n = len(engine.config.objectives)
    _, norm, *rest = take_step(engine, batches, lr, group_norms=True)
    inner.step, norms = inner_step, rest[n:]
    found["loss"] = np.array(rest[:n])
    found["norm"] = np.array(norm)
    found |= {f"norm of {group}": np.array(part) for group, part in zip(engine.groups, norms, strict=True)}
    return found


def gradients(stage: int, accumulation: int, offload: str, name: str) -> dict[str, np.ndarray]:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    settings = config(stage, accumulation, world_size, offload, name)
    phase = BatchStage.divided(world_size, StageSettings(0, SEQ_LEN, GLOBAL_ROWS, settings.train.micro_batch_size, ""))
    engine = Engine(settings, model())
    batches = loader(phase, rank, name)
    found = step_gradients(engine, batches.step(0, batches.mixture.start()).batches, lr=0.0)
    engine.release()
    return found


def runs(world_size: int) -> list[tuple[str, tuple[int, str], int]]:
    """Objective, ZeRO and accumulation of each run; a mixture of two halves needs two rows in a micro-batch."""
    found = [("masked", zero, accumulation) for zero in ZERO for accumulation in ACCUMULATIONS]
    accumulations = [n for n in ACCUMULATIONS if GLOBAL_ROWS // world_size // n >= 2]
    return found + [("mixture", zero, n) for zero in ZERO if zero[1] == "none" for n in accumulations]


if __name__ == "__main__":
    init_distributed()
    torch.set_num_threads(1)
    for name, (stage, offload), accumulation in runs(dist.get_world_size()):
        result = gradients(stage, accumulation, offload, name)
        if dist.get_rank() == 0:
            np.savez(Path(sys.argv[1]) / f"{name}-zero{stage}-{offload}-accumulation{accumulation}.npz", **result)
    dist.barrier()
    leave(0)
