"""Within one run, steps may have any number of micro-batches of any shape: each is the plain step over all of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pretrain.data import Batch
from pretrain.engine import Engine
from pretrain.model import Encoder
from pretrain.optim import build_optimizer
from tests.support import engine_steps as steps
from tests.support.ranks import run_ranks


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


def reference(world_size: int) -> dict[str, np.ndarray]:
    """Plain PyTorch in one process: the same steps, each over all micro-batches of all ranks."""
    torch.set_num_threads(1)
    encoder = steps.model()
    config = steps.config("fp32", "0").optim
    optimizer = build_optimizer(encoder, config.model_copy(update={"lr": steps.LR}))
    recorded: dict[str, np.ndarray] = {}
    for step in range(len(steps.STEPS)):
        batches = [batch for part in steps.global_batches(step, world_size) for batch in part]
        loss = sum(summed_loss(encoder, batch) for batch in batches) / sum(
            int((batch.labels >= 0).sum()) for batch in batches
        )
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
    run_ranks(__name__, world_size, "train_all", str(tmp_path))
    wanted = reference(world_size)
    for precision, zero in steps.RUNS:
        # Of the largest entry of each tensor: rounding of fp32, and of bf16 in weights, activations and sums.
        tolerance = {"fp32": 2e-5, "bf16": 0.06}[precision]
        recorded = np.load(tmp_path / f"{precision}-zero{zero}.npz")
        assert set(recorded.files) == set(wanted)
        for name, value in wanted.items():
            difference = np.abs(recorded[name] - value).max()
            assert difference <= tolerance * np.abs(value).max(), f"{precision}, ZeRO {zero}, {name}: {difference}"


if __name__ == "__main__":
    steps.run_as_rank(train_all)
