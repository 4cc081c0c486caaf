"""One rank of benchmarks/engine.py: the engine under each ZeRO stage, and plain DDP, take turns on the same batches.

`python -m benchmarks.engine_sides SETTINGS RESULT FOLDER`, with the launcher's variables set; rank 0 writes RESULT, and
all of them checkpoints in FOLDER.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.engine_saves import saves_of
from benchmarks.step_work import Weights
from data_prep.processes import leave
from pretrain.config import Config
from pretrain.data import Batch, DeviceBatch, DeviceFeed
from pretrain.engine import Engine, init_distributed
from pretrain.model import Encoder, EncoderShape
from pretrain.optim import described, parameter_groups

SEED, LR, RATE = 7, 1e-4, 0.15
FIRST_ID = 5  # of ordinary tokens


class Side(Protocol):
    """What trains: pretrain.engine.engine.Engine, or DDP behind the same call."""

    def step(self, batches: Sequence[DeviceBatch], predictions: Tensor, lr: float) -> Tensor: ...


class Plain:
    """PyTorch's DistributedDataParallel as its documentation has it, with the engine's loss, optimizer and metrics.

    In bf16 the model is, as the engine's, so that both have the same kernels; the optimizer then has fp32 copies.
    """

    def __init__(self, model: Encoder, config: Config, device: torch.device):
        dtype = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
        self.model = DistributedDataParallel(model.to(device, dtype), gradient_as_bucket_view=True)
        self.weights, self.device = Weights(parameter_groups(described(model), config.optim), config), device

    def step(self, batches: Sequence[DeviceBatch], predictions: Tensor, lr: float) -> Tensor:
        scale = dist.get_world_size() / predictions.clamp(min=1)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for number, batch in enumerate(batches, start=1):
            with nullcontext() if number == len(batches) else self.model.no_sync():
                found = self.model(**batch.inputs)
                sums += torch.stack([found.cross_entropy, found.correct]).double()
                (found.loss * scale.to(found.loss.dtype)).backward()
        norm = self.weights.step(lr)
        dist.all_reduce(sums)
        return torch.cat([sums, norm.double().reshape(1)])


def config_of(settings: dict[str, Any], stage: int) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": "unused"},
            "data": {"train": "unused", "seq_len": settings["seq_len"]},
            "train": {"steps": 1, "precision": settings["precision"]},
            "zero": {"stage": stage},
        }
    )


def model_of(settings: dict[str, Any]) -> Encoder:
    hidden = settings["hidden"]
    model = Encoder(
        EncoderShape(
            vocab_size=settings["vocab_size"],
            layers=settings["layers"],
            hidden=hidden,
            heads=hidden // 64,
            intermediate=4 * hidden,
            max_positions=settings["seq_len"],
            pad_id=0,
        )
    )
    model.initialize(SEED)
    return model


def batch_of(settings: dict[str, Any], number: int) -> Batch:
    """A micro-batch of rows of two documents, the same number of predictions in each row."""
    rng = np.random.default_rng([SEED, dist.get_rank(), number])
    rows, seq_len = settings["micro_batch_size"], settings["seq_len"]
    starts = np.arange(rows) * seq_len
    ends = np.stack([starts + rng.integers(seq_len // 4, 3 * seq_len // 4, rows), starts + seq_len], axis=1).reshape(-1)
    cu_seqlens = np.array([0, *ends], dtype=np.int32)
    lengths = np.diff(cu_seqlens)
    predicted = round(RATE * seq_len)
    places = [start + np.sort(rng.choice(seq_len, predicted, replace=False)) for start in starts]
    return Batch(
        tokens=rng.integers(FIRST_ID, settings["vocab_size"], rows * seq_len),
        positions=np.arange(rows * seq_len) - np.repeat(cu_seqlens[:-1].astype(np.int64), lengths),
        cu_seqlens=cu_seqlens,
        masked_positions=np.concatenate(places),
        labels=rng.integers(FIRST_ID, settings["vocab_size"], rows * predicted),
        seq_len=seq_len,
        n_documents=len(ends),
        n_tokens=rows * seq_len,
        n_predictions=rows * predicted,
        n_replaced=0,
    )


def seconds_of(side: Side, batches: list[DeviceBatch], predictions: Tensor, steps: int) -> tuple[float, list[float]]:
    """Time of `steps` steps, from when all ranks are ready to when all have finished; and the last step's values."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        values = side.step(batches, predictions, LR)
    last = values.tolist()
    dist.barrier()
    return time.perf_counter() - start, last


def main(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds a step of each side, round by round; of each side the values of its last step; and what saves cost.

    Checkpoints go to `folder`.
    """
    engines = {f"zero-{stage}": Engine(config_of(settings, stage), model_of(settings)) for stage in settings["stages"]}
    first = next(iter(engines.values()))
    plain = Plain(model_of(settings), config_of(settings, stage=1), first.device)
    sides: dict[str, Side] = {"ddp": plain}
    sides |= engines
    feed = DeviceFeed(first.device)
    batches = [feed(batch_of(settings, number)).wait() for number in range(settings["accumulation"])]
    predictions = first.total([sum(len(batch.labels) for batch in batches)])[0]
    for side in sides.values():
        seconds_of(side, batches, predictions, settings["skip"])
    rounds, last = [], {}
    for number in range(settings["rounds"]):
        turns = [*sides.items()]
        turns = turns[number % len(turns) :] + turns[: number % len(turns)]
        taken = {}
        for name, side in turns:
            seconds, last[name] = seconds_of(side, batches, predictions, settings["steps"])
            taken[name] = seconds / settings["steps"]
        rounds.append({name: taken[name] for name in sides})
    parameters = sum(p.numel() for p in model_of(settings).parameters())
    saved = engines.get("zero-1", first)
    fresh = Engine(saved._config, model_of(settings))
    saves = saves_of(folder, saved, lambda: fresh, lambda: saved.step(batches, predictions, LR).tolist())
    return {
        "rounds": rounds,
        "last": last,
        "parameters": parameters,
        "device": str(first.device),
        "saves": saves,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    init_distributed()
    found = main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[3]))
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))
    dist.barrier()
    leave(0)
