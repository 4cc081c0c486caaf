"""One rank of benchmarks/measuring.py: the same steps with nothing measured beside them, with gradient norms of parts
in every step, and with samples of the machine ten times a second, in turns.

`python -m benchmarks.measuring_sides SETTINGS RESULT FOLDER`, with the launcher's variables set; rank 0 writes RESULT.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engine_sides import LR, batch_of, config_of, model_of
from data_prep.processes import leave
from pretrain.data import DeviceFeed
from pretrain.engine import Engine, init_distributed
from pretrain.reporting.node_metrics import SystemMetrics

SIDES = ("nothing", "group norms", "system")
SAMPLE_SECONDS = 0.1
SAMPLES = 200  # of which the CPU time is taken


def main(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds a step of each side, round by round, and the CPU seconds of one measurement of each kind."""
    engine = Engine(config_of(settings, settings["stage"]), model_of(settings))
    norms: list[float] = []
    engine._norms.squares = _timed(engine._norms.squares, norms)  # type: ignore[method-assign]
    feed = DeviceFeed(engine.device)
    batches = [feed(batch_of(settings, 0)).wait()]
    predictions = engine.total([len(batches[0].labels)])[0]

    def seconds(side: str, steps: int) -> float:
        system = SystemMetrics(folder, dist.get_rank(), ["node"] * dist.get_world_size(), SAMPLE_SECONDS)
        if side == "system":
            system.start()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            engine.step(batches, predictions, LR, group_norms=side == "group norms").tolist()
            system.latest()
        dist.barrier()
        taken = time.perf_counter() - start
        system.close()
        return taken / steps

    for side in SIDES:
        seconds(side, settings["skip"])
    norms.clear()
    rounds = []
    for number in range(settings["rounds"]):
        turns = SIDES[number % len(SIDES) :] + SIDES[: number % len(SIDES)]
        rounds.append({side: seconds(side, settings["steps"]) for side in turns})
    samples = _samples(folder) if dist.get_rank() == 0 else []
    return {"rounds": rounds, "norms": norms, "samples": samples, "device": str(engine.device)}


def _timed(function: Callable[[], torch.Tensor], taken: list[float]) -> Callable[[], torch.Tensor]:
    def timed() -> torch.Tensor:
        start = time.thread_time()
        found = function()
        taken.append(time.thread_time() - start)
        return found

    return timed


def _samples(folder: Path) -> list[float]:
    """What the thread does each time: sample, write, read."""
    system, taken = SystemMetrics(folder, 0, ["node"], SAMPLE_SECONDS), []
    sampler = system._of_this_machine()
    for _ in range(SAMPLES):
        start = time.thread_time()
        system._write(sampler())
        system._news()
        taken.append(time.thread_time() - start)
    return taken


if __name__ == "__main__":
    torch.set_num_threads(1)
    init_distributed()
    found = main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[3]))
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))
    dist.barrier()
    leave(0)
