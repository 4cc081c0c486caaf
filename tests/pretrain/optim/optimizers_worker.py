"""One rank: every optimizer under every ZeRO stage, and over parameters cut at random.

`python -m tests.pretrain.optim.optimizers_worker FOLDER train`: for each case rank 0 writes the weights at the start,
the gradients and weights of every step, and the averaged weights after the last. `offload`: the same with the
optimizer's state in the host's memory. `cut`: the same with parameters that lie anywhere. `save`: leaves a checkpoint
of each
optimizer; `load PROCESSES STAGE`: takes those up and compares.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from data_prep.common.processes import leave
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config, OptimConfig
from pretrain.engine import Engine, init_distributed, layout_of
from pretrain.engine.resharding import exchange_weights, local_pieces
from pretrain.model import Encoder, EncoderShape
from pretrain.optim import Piece, build_optimizer, described
from pretrain.optim.optimizers import Muon
from pretrain.optim.parameter_groups import Described
from tests.pretrain.engine.gradients_worker import SEQ_LEN, step_gradients, take_step
from tests.pretrain.engine.varying_worker import global_batches
from tests.support.checkpoints import write_parts
from tests.support.engine_state import full_state
from tests.support.optimizers import LR, MATRIX, NAMES, settings

SHAPE = EncoderShape(
    vocab_size=101, layers=2, hidden=32, heads=2, intermediate=40, max_positions=SEQ_LEN, pad_id=0, arch="modernbert"
)
# Optimizer, precision, and ZeRO's stage with what is offloaded.
CASES = {
    "train": [(name, "fp32", f"{stage}") for name in NAMES for stage in range(4)]
    + [("muon", "bf16", "1"), ("muon", "bf16", "3")],
    "offload": [(name, "fp32", f"{stage}-cpu") for name in NAMES for stage in (1, 2, 3)]
    + [("lamb", "bf16", "2-cpu"), ("muon", "bf16", "3-cpu")],
}
STEPS = 3


def model() -> Encoder:
    encoder = Encoder(SHAPE)
    encoder.initialize(0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(3)  # so that weight decay and trust ratios matter
    return encoder


def start(name: str, precision: str, zero: str) -> Engine:
    offload = "cpu" if zero.endswith("cpu") else "none"
    values = {
        "run": {"dir": "unused"},
        "data": {"train": "unused"},
        "optim": settings(name),
        "train": {"steps": 1, "precision": precision},
        "zero": {"stage": int(zero[0]), "offload": offload, "offload_parameters": zero == "3-cpu"},
    }
    return Engine(Config.model_validate(values), model())


def state(engine: Engine, key: str | None) -> dict[str, np.ndarray]:
    """The fp32 weights, or the state `key` of all parameters that have it."""
    if key not in ("exp_avg", "momentum_buffer"):
        return full_state(engine, key)
    return full_state(engine, key, lambda name: has_momentum(engine, name) == (key == "momentum_buffer"))


def has_momentum(engine: Engine, name: str) -> bool:
    return engine.config.optim.name == "muon" and bool(re.fullmatch(MATRIX, name))


def snapshot(engine: Engine) -> list[Tensor]:
    """Weights and state on this rank, and the weights that the model computes with."""
    engine.wait_for_weights()
    inner: Any = engine.deepspeed
    flats = [tensor for tensor, _ in local_pieces(inner)]
    states = [value for flat in flats for value in inner.basic_optimizer.state[flat].values()]
    low = [p.ds_tensor if hasattr(p, "ds_tensor") else p for p in inner.module.parameters()]
    whole = [p for p in inner.module.parameters() if p.numel()]  # of ZeRO 3 those that stay on every rank
    return [tensor.detach().clone() for tensor in [*flats, *states, *low, *whole]]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.numpy(force=True).tobytes() == b.numpy(force=True).tobytes()
        for a, b in zip((t.float() for t in one), (t.float() for t in other), strict=True)
    )


def batches(number: int) -> Any:
    return global_batches(number, dist.get_world_size())[dist.get_rank()]


def skipped(engine: Engine) -> Callable[[], None]:
    """DeepSpeed's step, with the flag that gradients are not finite."""
    step, optimizer = engine.deepspeed.step, engine.deepspeed.basic_optimizer

    def skip() -> None:
        optimizer.found_inf = torch.ones_like(optimizer.found_inf)
        step()

    return skip


def train(name: str, precision: str, zero: str) -> dict[str, np.ndarray]:
    engine = start(name, precision, zero)
    found = {f"start {key}": value for key, value in state(engine, None).items()}
    for step in range(STEPS):
        if step == 1:
            before = snapshot(engine)
            with patch.object(engine.deepspeed, "step", skipped(engine)):
                take_step(engine, batches(3), LR)
            assert same(before, snapshot(engine)), f"{name} {precision} {zero}: a skipped step has left its mark"
        found |= {f"{step} {key}": value for key, value in step_gradients(engine, batches(step), LR).items()}
        found |= {f"after {step} {key}": value for key, value in state(engine, None).items()}
    before, average = snapshot(engine), state(engine, "ema")
    exchange_weights(engine.deepspeed)
    for key, value in state(engine, None).items():
        assert np.array_equal(value, average[key])
    for parameter, value in zip(engine.deepspeed.module.parameters(), average.values(), strict=True):
        if parameter.numel():
            assert torch.equal(parameter, torch.from_numpy(value).to(parameter.dtype)), "the model computes with others"
    exchange_weights(engine.deepspeed)
    assert same(before, snapshot(engine)), f"{name} {precision} {zero}: weights are not restored"
    engine.release()
    return found | {f"ema {key}": value for key, value in average.items()}


def cut(name: str) -> dict[str, np.ndarray]:
    """Without DeepSpeed: the parameters of a group back to back, cut anywhere, and the last rank has padding alone."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    encoder = model()
    parts = described(encoder)
    optimizer = build_optimizer(encoder, OptimConfig(**settings(name)))
    rng = np.random.default_rng(5)
    placed: list[tuple[Tensor, list[Piece]]] = []
    for group in optimizer.param_groups:
        inside = [part for part in parts if part.kind == group["kind"]]
        ends = np.cumsum([part.parameter.numel() for part in inside])
        cuts = [0, *np.sort(rng.integers(0, ends[-1], ranks - 2)), ends[-1], ends[-1]] if ranks > 1 else [0, ends[-1]]
        first, last = int(cuts[rank]), int(cuts[rank + 1])
        flat, pieces = torch.zeros(last - first + 5), []
        for part, end in zip(inside, ends, strict=True):
            begin = int(end) - part.parameter.numel()
            low, high = max(first, begin), min(last, int(end))
            if low < high:
                pieces.append(Piece(part.name, low - begin, high - low, low - first + 3))
                flat[low - first + 3 : high - first + 3] = part.parameter.detach().view(-1)[low - begin : high - begin]
        group["params"] = [flat]
        placed.append((flat, pieces))
    optimizer.set_fragments(placed)
    found = {f"start {part.name}": part.parameter.detach().numpy().copy() for part in parts}
    for step in range(STEPS):
        growing = [1, 4, 2][step]  # so that StableAdamW clips
        gradients = {part.name: growing * rng.standard_normal(part.shape).astype(np.float32) for part in parts}
        for flat, pieces in placed:
            flat.grad = torch.zeros_like(flat)
            for piece in pieces:
                values = torch.from_numpy(gradients[piece.name]).view(-1)[piece.start : piece.start + piece.numel]
                flat.grad[piece.offset : piece.offset + piece.numel] = values
        optimizer.step()
        found |= {f"{step} {key}": value for key, value in gradients.items()}
        found |= {f"after {step} {key}": value for key, value in _whole(parts, placed).items()}
    averages = _whole(parts, [(optimizer.state[flat]["ema"], pieces) for flat, pieces in placed])
    return found | {f"ema {key}": value for key, value in averages.items()}


def _whole(parts: list[Described], placed: list[tuple[Tensor, list[Piece]]]) -> dict[str, np.ndarray]:
    found = {}
    for part in parts:
        whole = torch.zeros(part.shape.numel())
        for flat, pieces in placed:
            for piece in pieces:
                if piece.name == part.name:
                    values = flat.detach()[piece.offset : piece.offset + piece.numel]
                    whole[piece.start : piece.start + piece.numel] = values
        dist.all_reduce(whole)
        found[part.name] = whole.view(part.shape).numpy()
    return found


def everything(engine: Engine) -> dict[str, np.ndarray]:
    keys = [None, "ema", "exp_avg", *(["momentum_buffer"] if engine.config.optim.name == "muon" else [])]
    return {f"{key} {name}": value for key in keys for name, value in state(engine, key).items()}


def step_alike(engine: Engine) -> dict[str, np.ndarray]:
    take_step(engine, global_batches(3, 1)[0], LR)
    return {f"after {name}": value for name, value in state(engine, None).items()}


def save(folder: Path) -> None:
    for name in NAMES:
        engine = start(name, "fp32", "1")
        for number in range(2):
            take_step(engine, batches(number), LR)
        write_parts(folder / name, engine.snapshot(folder / name, copy=False))
        dist.barrier()
        found = everything(engine) | step_alike(engine)
        if dist.get_rank() == 0:
            np.savez(folder / name / "record.npz", **found)
        engine.release()
    dist.barrier()


def load(folder: Path, processes: int, stage: int) -> None:
    for name in NAMES:
        engine = start(name, "fp32", f"{stage}")
        layout = layout_of(engine.config) | {"processes": processes, "zero.stage": 1}
        engine.load(Checkpoint(folder / name, 2, {"layout": layout}, {}))
        wanted, found = np.load(folder / name / "record.npz"), everything(engine)
        for key, value in found.items():
            assert np.array_equal(value, wanted[key]), f"{name}: {key} differs"
        after = step_alike(engine)
        assert {*found, *after} == {*wanted.files}
        for key, value in after.items():
            np.testing.assert_allclose(value, wanted[key], rtol=1e-4, atol=1e-4 * LR, err_msg=f"{name}: {key}")
        engine.release()


def write(folder: Path, results: dict[str, dict[str, np.ndarray]]) -> None:
    if dist.get_rank() == 0:
        for case, result in results.items():
            np.savez(folder / f"{case}.npz", **result)


if __name__ == "__main__":
    # In bf16 small singular values are noise; test_optim.py has the products, here it is about the parts.
    # Not if this is only imported: that process continues with other tests.
    Muon.orthogonalization_dtype = torch.float32  # type: ignore[assignment,method-assign]
    init_distributed()
    torch.set_num_threads(1)
    folder, action, *rest = sys.argv[1:]
    if action == "save":
        save(Path(folder))
    elif action == "load":
        load(Path(folder), int(rest[0]), int(rest[1]))
    elif action in CASES:
        write(Path(folder), {f"{case[0]}.{case[1]}-{case[2]}": train(*case) for case in CASES[action]})
    else:
        write(Path(folder), {f"{name}.cut": cut(name) for name in NAMES})
    dist.barrier()
    leave(0)
