"""Gradients of a global batch equal the gradients of its loss, for any split, also of steps that vary within one run.

The loss is the weighted sum of the objectives' losses, each the sum over its predictions divided by their weights.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from pretrain.config import Config, StageSettings
from pretrain.data import Batch, BatchStage, Loader
from pretrain.engine import Engine
from pretrain.masking import IGNORED, Masked, Rows
from pretrain.model import Encoder
from pretrain.objectives import Objective, objective_of
from pretrain.optim import build_optimizer
from tests.support import engine_steps as steps
from tests.support.memory_blocks import MemoryBlocks, memory_loader
from tests.support.ranks import check_on_ranks

ROWS = 16  # of the global batch
ACCUMULATIONS = (1, 2, 4)
OBJECTIVES = [{"kind": "clm", "share": 0.5, "weight": 3.0}, {"kind": "mlm", "share": 0.5}]
# Few rows are full, so predictions differ from row to row, and a mean of means differs from the mean.
LENGTHS = [[30, 28, 17, 16, 25, 23, 19, 18, 22, 27, 16]]


class Weighted:
    """Weights for the predictions of an objective: 0.5 for ids below 50, and 2 for others."""

    def __init__(self, inner: Objective):
        self.inner, self.flags, self.slots = inner, inner.flags, inner.slots

    def __call__(self, rows: Rows, rate: float) -> Masked:
        masked = self.inner(rows, rate)
        weights = np.where(masked.labels < 50, 0.5, 2.0) * (masked.labels != IGNORED)
        return replace(masked, weights=weights.astype(np.float32))


def config(stage: int) -> Config:
    data = {"train": "unused", "seq_len": steps.SEQ_LEN}
    return steps.config("fp32", str(stage), objective=OBJECTIVES, data=data, optim={})


def loader(world_size: int, rank: int, accumulation: int = 1) -> Loader:
    settings = StageSettings(0, steps.SEQ_LEN, ROWS, ROWS // world_size // accumulation, "")
    stage, objective = BatchStage.divided(world_size, settings), objective_of(config(1), steps.VOCABULARY, 3, "train")
    return memory_loader([MemoryBlocks(LENGTHS)], steps.VOCABULARY, Weighted(objective), [stage], rank, 3, 1)


def splits(world_size: int) -> list[tuple[int, int]]:
    """ZeRO stage and accumulation of each run; a mixture of two halves needs two rows in a micro-batch."""
    return [(stage, n) for stage in range(4) for n in ACCUMULATIONS if ROWS // world_size // n >= 2]


def write_gradients(folder: str) -> None:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    for stage, accumulation in splits(world_size):
        engine, batches = Engine(config(stage), steps.model()), loader(world_size, rank, accumulation)
        gradients = steps.step_gradients(engine, batches.step(0, batches.mixture.start()).batches, lr=0.0)
        engine.release()
        if rank == 0:
            np.savez(Path(folder) / f"zero{stage}-accumulation{accumulation}.npz", **gradients)


def reference() -> dict[str, np.ndarray]:
    """A loss written out in plain PyTorch. Each objective has a model of its own view, with the same weights."""
    torch.set_num_threads(1)
    batches = loader(1, 0)
    (batch,) = batches.step(0, batches.mixture.start()).batches
    encoder = steps.model()
    causal = Encoder(replace(steps.SHAPE, causal=True))
    half, loss = ROWS // 2 * steps.SEQ_LEN, []
    of_masked, of_causal = np.split(batch.tokens, 2)
    assert (of_masked == steps.VOCABULARY.mask).any()
    assert not (of_causal == steps.VOCABULARY.mask).any()
    causal.load_state_dict(encoder.state_dict())
    for tokens, first, call in ((of_masked, 0, encoder), (of_causal, half, causal)):
        bounds = batch.cu_seqlens[(batch.cu_seqlens >= first) & (batch.cu_seqlens <= first + half)] - first
        here = (batch.masked_positions >= first) & (batch.masked_positions < first + half)
        arrays = tokens, batch.positions[first : first + half], bounds, batch.masked_positions[here] - first
        *stream, places = map(torch.from_numpy, arrays)
        logits, labels = call.logits(call.hidden(*stream, steps.SEQ_LEN)), torch.from_numpy(batch.labels[here])
        each = F.cross_entropy(logits[places], labels, reduction="none")
        weights = torch.where(labels < 50, 0.5, 2.0) * (labels >= 0)
        loss.append((each * weights).sum() / weights.sum())
    (loss[0] + 3 * loss[1]).backward()
    gradients = {name: (p.grad + causal.get_parameter(name).grad).numpy() for name, p in encoder.named_parameters()}
    whole = steps.norm([*gradients.values()])
    assert whole > config(0).optim.grad_clip, "or norms after clipping would pass for those before"
    losses = np.array([each.item() for each in loss])
    return gradients | {"loss": losses, "norm": whole}


def check(file: Path, wanted: dict[str, np.ndarray], tolerance: float) -> None:
    """Compare what a run has recorded; `tolerance` is of the largest entry of each array."""
    recorded = np.load(file)
    assert set(recorded.files) == set(wanted)
    for name, value in wanted.items():
        difference = np.abs(recorded[name] - value).max()
        assert difference <= tolerance * np.abs(value).max(), f"{file.stem}, {name}: {difference}"


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_over_zero_stages_and_accumulation(world_size, tmp_path):
    check_on_ranks(write_gradients, world_size, tmp_path)
    wanted, files = reference(), sorted(tmp_path.glob("*.npz"))
    assert len(files) == len(splits(world_size))
    for file in files:
        check(file, wanted, 2e-5)


# Steps of varying micro-batches


def train_all(folder: str) -> None:
    """As one rank; rank 0 writes the gradients of every step and the weights after the last."""
    for precision, zero in steps.RUNS:
        engine = Engine(steps.config(precision, zero), steps.model())
        recorded = {}
        for step in range(len(steps.STEPS)):
            gradients = steps.step_gradients(engine, steps.rank_batches(step))
            recorded |= {f"{step} {name}": value for name, value in gradients.items()}
        recorded |= {f"after {name}": value for name, value in steps.full_state(engine, None).items()}
        engine.release()
        if dist.get_rank() == 0:
            np.savez(Path(folder) / f"{precision}-zero{zero}.npz", **recorded)


def summed_loss(encoder: Encoder, batch: Batch) -> torch.Tensor:
    arrays = (batch.tokens, batch.positions, batch.cu_seqlens, batch.masked_positions, batch.labels)
    inputs = [torch.from_numpy(array) for array in arrays]
    return encoder(*inputs, seq_len=batch.seq_len).loss


def reference_steps(world_size: int) -> dict[str, np.ndarray]:
    """Plain PyTorch in one process: the same steps, each over all micro-batches of all ranks."""
    torch.set_num_threads(1)
    encoder = steps.model()
    config = steps.config("fp32", "0").optim
    optimizer = build_optimizer(encoder, config.model_copy(update={"lr": steps.LR}))
    recorded: dict[str, np.ndarray] = {}
    for step in range(len(steps.STEPS)):
        batches = [batch for part in steps.global_batches(step, world_size) for batch in part]
        predictions = sum(int((batch.labels >= 0).sum()) for batch in batches)
        loss = sum(summed_loss(encoder, batch) for batch in batches) / predictions
        loss.backward()
        gradients = {name: p.grad.numpy().copy() for name, p in encoder.named_parameters()}
        recorded |= {f"{step} {name}": value for name, value in gradients.items()}
        norm = torch.nn.utils.clip_grad_norm_(encoder.parameters(), config.grad_clip)
        recorded |= {f"{step} loss": np.array(loss.item()), f"{step} norm": np.array(norm.item())}
        optimizer.step()
        optimizer.zero_grad()
    return recorded | {f"after {name}": p.detach().numpy().copy() for name, p in encoder.named_parameters()}


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_steps_of_varying_micro_batches_are_the_plain_steps(world_size, tmp_path):
    check_on_ranks(train_all, world_size, tmp_path)
    wanted = reference_steps(world_size)
    for precision, zero in steps.RUNS:
        # Rounding of fp32, and of bf16 in weights, activations and sums.
        check(tmp_path / f"{precision}-zero{zero}.npz", wanted, {"fp32": 2e-5, "bf16": 0.06}[precision])
