"""One rank: training with optimizer state on disk is, bit for bit, training with it in memory.

`python -m tests.distributed.nvme_worker FOLDER`: steps, a skipped one among them, averaged weights, checkpoints.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from pretrain.checkpoint import Checkpoint
from pretrain.checkpoint.write import write_parts
from pretrain.config import Config
from pretrain.data.feed import DeviceFeed
from pretrain.engine import Engine, init_distributed
from pretrain.layout import layout_of, load_file
from pretrain.model.encoder import Encoder
from pretrain.nvme import remove_folder, swap_folder
from pretrain.signals import leave
from tests.distributed import varying_worker as varying
from tests.distributed.gradients_worker import SHAPE, take_step

# Groups of parameters of less than a megabyte a rank are not swapped.
LARGE = replace(SHAPE, hidden=256, heads=4, intermediate=1024, vocab_size=4001)
CASES = [("adamw", "fp32"), ("muon", "bf16")]


def config(folder: Path, name: str, precision: str, offload: str) -> Config:
    zero = {"stage": 3, "offload": offload} | ({"nvme_path": str(folder / "disk")} if offload == "nvme" else {})
    return Config.model_validate(
        {
            "run": {"dir": str(folder / "run")},
            "data": {"train": "unused"},
            "optim": {"name": name, "ema": 0.9},
            "train": {"steps": 1, "precision": precision},
            "zero": zero,
        }
    )


def start(settings: Config) -> Engine:
    model = Encoder(LARGE)
    model.initialize(0)
    return Engine(settings, model)


def step(engine: Engine, number: int) -> list[float]:
    return take_step(engine, varying.global_batches(number, dist.get_world_size())[dist.get_rank()], 1e-3)


def save(engine: Engine, path: Path) -> None:
    write_parts(path, engine.snapshot(path, copy=True))
    dist.barrier()


def train(settings: Config, path: Path) -> list[Any]:
    """Two steps, one that is skipped, an evaluation, a checkpoint, one step more, and another checkpoint."""
    engine = start(settings)
    found = [step(engine, 0), step(engine, 1)]
    with patch.object(engine, "_optimize", lambda skipped, whole=engine._optimize: whole(skipped + 1)):
        found.append(step(engine, 3))
    batches = varying.global_batches(2, dist.get_world_size())[dist.get_rank()]
    found.append(engine.evaluate(map(DeviceFeed(engine.device), batches), averaged=True).tolist())
    save(engine, path / "before")
    found.append(step(engine, 2))
    save(engine, path / "after")
    check_swapped(settings)
    engine.release()
    return found


def check_swapped(settings: Config) -> None:
    if folder := swap_folder(settings):
        files = [*folder.rglob(f"rank{dist.get_rank()}/*.tensor.swp")]
        assert any(file.name.startswith(("exp_avg", "momentum_buffer")) for file in files), files
        assert any(file.name.startswith("ema") for file in files), files


def resume(settings: Config, path: Path, layout: dict[str, Any], to: Path) -> list[float]:
    engine = start(settings)
    engine.load(Checkpoint(path, 3, {"layout": layout}, {}))
    found = step(engine, 2)
    save(engine, to)
    engine.release()
    return found


def same(one: Path, other: Path) -> None:
    """Whether this rank's weights and moments in two checkpoints are."""
    (first,), (second,) = (
        [load_file(file)["optimizer_state_dict"] for file in path.rglob(f"*rank_{dist.get_rank()}_*optim_states.pt")]
        for path in (one, other)
    )
    equal(first["fp32_flat_groups"], second["fp32_flat_groups"], f"{one} {other}")
    equal(first["optimizer_state_dict"]["state"], second["optimizer_state_dict"]["state"], f"{one} {other}")


def equal(one: Any, other: Any, where: str) -> None:
    if torch.is_tensor(one):
        assert one.shape == other.shape, where
        assert torch.equal(one.detach(), other.detach()), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        equal([*one.values()], [*other.values()], f"{where} {[*one]}")
    else:
        for number, pair in enumerate(zip(one, other, strict=True)):
            equal(*pair, f"{where} {number}")


def check(folder: Path, name: str, precision: str) -> None:
    memory, disk = (config(folder, name, precision, offload) for offload in ("cpu", "nvme"))
    assert train(memory, folder / "memory") == (found := train(disk, folder / "disk-run")), (name, precision)
    for when in ("before", "after"):
        same(folder / "memory" / when, folder / "disk-run" / when)
    for settings, start_of in ((disk, disk), (disk, memory), (memory, disk)):
        path = folder / ("disk-run" if start_of is disk else "memory") / "before"
        to = folder / f"resumed-{settings.zero.offload}-{start_of.zero.offload}"
        assert resume(settings, path, layout_of(start_of), to) == found[-1]
        same(to, folder / "memory" / "after")
    remove_folder(disk, dist.get_rank())
    dist.barrier()
    assert not any((folder / "disk").iterdir()), [*(folder / "disk").rglob("*")]


if __name__ == "__main__":
    init_distributed()
    torch.set_num_threads(1)
    for name, precision in CASES:
        check(Path(sys.argv[1]) / name, name, precision)
    dist.barrier()
    leave(0)
