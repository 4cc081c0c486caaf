"""One rank: load states of other numbers of ranks and other layouts, and save under every layout.

`python -m tests.pretrain.engine.layout_worker FOLDER [FROM some|all] [save]`: loads the checkpoints that FROM ranks
have left in FOLDER, each under the next layout or under all of them, and compares weights, moments and step exactly
with what was recorded when it was written, and the weights after one step more. Trains under each layout, saves,
records.
"""

import sys
from pathlib import Path

import deepspeed
import numpy as np
import torch
import torch.distributed as dist

from data_prep.common.processes import leave
from pretrain.checkpoint import Checkpoint
from pretrain.data import Batch
from pretrain.engine import Engine, init_distributed, layout_of
from pretrain.engine.resharding import Layout
from tests.pretrain.engine import varying_worker as varying
from tests.pretrain.engine.gradients_worker import model, take_step
from tests.support.checkpoints import write_parts
from tests.support.engine_state import full_state

KEYS = ("exp_avg", "exp_avg_sq")


def record(engine: Engine) -> dict[str, np.ndarray]:
    """The whole state, and the number of steps."""
    found = full_state(engine, None)
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=engine.config.zero.stage == 3):
            low = parameter.detach().float().clone()
        wanted = torch.from_numpy(found[name]).to(parameter.dtype).float()
        assert torch.equal(low, wanted), f"{name}: the model computes with others"
    for key in KEYS:
        found |= {f"{name} {key}": value for name, value in full_state(engine, key).items()}
    steps = {float(state["step"]) for state in engine.deepspeed.basic_optimizer.state.values()}
    assert len(steps) == 1, steps
    return found | {"step": np.array(steps.pop(), dtype=np.float32)}


def start(precision: str, zero: str) -> Engine:
    return Engine(varying.config(precision, zero), model())


def step(engine: Engine, batches: list[Batch]) -> None:
    take_step(engine, batches, varying.LR)


def step_all_alike(engine: Engine) -> dict[str, np.ndarray]:
    """Take a step with the same batch on every rank, so that it is the same for any number of ranks."""
    step(engine, varying.global_batches(0, 1)[0])
    return {f"{name} after": value for name, value in record(engine).items()}


def save(folder: Path) -> None:
    for precision, zero in varying.RUNS:
        engine = start(precision, zero)
        for number in range(2):
            step(engine, varying.global_batches(number, dist.get_world_size())[dist.get_rank()])
        path = folder / f"{dist.get_world_size()}-{precision}-{zero}"
        write_parts(path, engine.snapshot(path, copy=False))
        dist.barrier()
        found = record(engine) | step_all_alike(engine)
        if dist.get_rank() == 0:
            np.savez(path / "record.npz", **found)
        engine.release()
    dist.barrier()


def load(path: Path, before: Layout, precision: str, zero: str) -> None:
    wanted = np.load(path / "record.npz")
    engine = start(precision, zero)
    engine.load(Checkpoint(path, 2, {"layout": before}, {}))
    found = record(engine)
    for name, value in found.items():
        assert np.array_equal(value, wanted[name]), f"{path.name} -> {precision} {zero}: {name} differs"
    after = step_all_alike(engine)
    assert set(found) | set(after) == set(wanted.files)
    tolerance = 1e-5 if precision == before["train.precision"] == "fp32" else 0.05
    for name, value in after.items():
        difference = np.abs(value - wanted[name]).max()
        assert difference <= tolerance * np.abs(wanted[name]).max(), f"{path.name} -> {precision} {zero}: {name}"
    engine.release()


def load_each(folder: Path, processes: int, everywhere: bool) -> None:
    for number, (precision, zero) in enumerate(varying.RUNS):
        path = folder / f"{processes}-{precision}-{zero}"
        before = layout_of(varying.config(precision, zero)) | {"processes": processes}
        targets = varying.RUNS if everywhere else [varying.RUNS[(number + 1) % len(varying.RUNS)]]
        for target in targets:
            load(path, before, *target)


if __name__ == "__main__":
    init_distributed()
    torch.set_num_threads(1)
    folder, *actions = sys.argv[1:]
    if len(actions) > 1:
        load_each(Path(folder), int(actions[0]), everywhere=actions[1] == "all")
    if actions[-1] == "save":
        save(Path(folder))
    leave(0)
