"""What a checkpoint of the engine costs: how long training stands still, seconds until it is there, bytes, resuming."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pretrain import checkpoint
from pretrain.checkpoint.choose_checkpoint import newest_verified
from pretrain.checkpoint.saver import Saver
from pretrain.config.run import CheckpointConfig
from pretrain.engine import Engine
from pretrain.engine.resharding import layout_of

SAVES = 6  # of each kind; the first claims memory, and does not count


def saves_of(
    checkpoints: Path, engine: Engine, fresh: Callable[[], Engine], step: Callable[[], None]
) -> dict[str, float]:
    """Medians on this rank, in seconds and bytes; a collective.

    Args:
        checkpoints: an empty folder.
        engine: has trained.
        fresh: another engine of the same run, for a resume.
        step: takes one step of `engine`.
    """
    found: dict[str, float] = {}
    state = {"layout": layout_of(engine._config)}
    for asynchronous in (False, True):
        taken = [_save(engine, checkpoints, number, asynchronous, state, step) for number in range(1, SAVES + 1)][1:]
        kind = "asynchronous" if asynchronous else "synchronous"
        found |= {f"{kind} {name}": statistics.median(one[name] for one in taken) for name in taken[0]}
    found["copy"] = statistics.median(_seconds(lambda: engine.snapshot(checkpoints / "none", True)) for _ in range(5))
    found["step"] = statistics.median(_seconds(step) for _ in range(20))
    start = time.perf_counter()
    newest = newest_verified(checkpoints, print)
    assert newest
    found["verify"] = time.perf_counter() - start
    found["bytes"] = sum(file["bytes"] for file in newest.files.values())
    resumed = fresh()
    found["load"] = _seconds(lambda: resumed.load(newest))
    return found


def _save(
    engine: Engine, folder: Path, number: int, asynchronous: bool, state: dict[str, Any], step: Callable[[], None]
) -> dict[str, float]:
    """Seconds that training stands still for a save, and until it is committed; steps go on meanwhile."""
    settings = CheckpointConfig(asynchronous=asynchronous, keep=1)
    saver = Saver(folder, settings, engine.snapshot, lambda step, metrics: None)
    dist.barrier()
    start = time.perf_counter()
    saver.begin(number, state)
    stalled, steps, stepping = time.perf_counter() - start, 0, 0.0
    while saver.busy:
        begin = time.perf_counter()
        step()
        steps, stepping = steps + 1, stepping + time.perf_counter() - begin
        begin = time.perf_counter()
        if engine.total(saver.poll())[0] == dist.get_world_size():
            saver.finish()
        stalled += time.perf_counter() - begin
    committed = time.perf_counter() - start
    saver.close()
    assert checkpoint.committed(folder)
    return {"stall": stalled, "committed": committed, "step meanwhile": stepping / steps if steps else 0.0}


def _seconds(call: Callable[[], Any]) -> float:
    dist.barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
