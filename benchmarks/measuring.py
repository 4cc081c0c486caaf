"""Cost of two measurements of a run, as a share of the step: gradient norms by layer, and samples of the machine.

    python -m benchmarks.measuring
    python -m benchmarks.measuring --quick --out /tmp/measuring.md

Two ranks of one thread train a small model. In each round the same engine takes steps without measurements, with the
norms in every step, and with ten samples of the machine per second. A run measures far more rarely (every 100 steps,
every 30 seconds); the share follows from the CPU time of one measurement.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from benchmarks.engine import CPU, QUICK
from benchmarks.engine_ranks import LR, batches_of, config_of, model_of, on_ranks, turns
from benchmarks.harness import options, ratios, run, spread, table, warn_if_busy, write_page
from pretrain.config import Config
from pretrain.engine import Engine
from pretrain.reporting.node_metrics import SystemMetrics

TRACK = Config.model_fields["track"].default  # the intervals of a run
NOTHING, NORMS, SYSTEM = "nothing", "group norms", "system"
SAMPLE_SECONDS = 0.1
SAMPLES = 200  # whose CPU time is measured


def main() -> None:
    parser = options(__doc__, "measuring")
    parser.add_argument("--rounds", type=int, default=15, help="each measures every side once")
    parser.add_argument("--steps", type=int, default=10, help="per side and round")
    parser.add_argument("--quick", action="store_true", help="a small model and few steps, to try the script")
    args = parser.parse_args()
    warn_if_busy()
    settings = CPU | {"accumulation": 1, "rounds": args.rounds, "steps": args.steps, "skip": 3}
    settings |= QUICK if args.quick else {}
    write_page(args.out, page(on_ranks(measure, settings, 2, "cpu"), settings), ("torch", "deepspeed", "psutil"))


def measure(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds per step of each side, by round, and the CPU seconds of one measurement of each kind."""
    engine = Engine(config_of(settings, stage=1), model_of(settings))
    norms: list[float] = []
    engine._norms.squares = _timed(engine._norms.squares, norms)  # type: ignore[method-assign]
    batches, predictions = batches_of(settings, engine)

    def seconds(side: str, steps: int) -> float:
        system = SystemMetrics(folder, dist.get_rank(), ["node"] * dist.get_world_size(), SAMPLE_SECONDS)
        if side == SYSTEM:
            system.start()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            engine.step(batches, predictions, LR, group_norms=side == NORMS).tolist()
            system.latest()
        dist.barrier()
        taken = time.perf_counter() - start
        system.close()
        return taken / steps

    sides = [NOTHING, NORMS, SYSTEM]
    for side in sides:
        seconds(side, settings["skip"])
    norms.clear()
    rounds = [{side: seconds(side, settings["steps"]) for side in order} for order in turns(sides, settings["rounds"])]
    samples = _samples(folder) if dist.get_rank() == 0 else []
    return {"rounds": rounds, "norms": norms, "samples": samples, "device": str(engine.device)}


def _timed(function: Callable[[], Tensor], seconds: list[float]) -> Callable[[], Tensor]:
    def timed() -> Tensor:
        start = time.thread_time()
        result = function()
        seconds.append(time.thread_time() - start)
        return result

    return timed


def _samples(folder: Path) -> list[float]:
    """CPU seconds of what the thread does each time: sample, write, read."""
    system, seconds = SystemMetrics(folder, 0, ["node"], SAMPLE_SECONDS), []
    sampler = system._of_this_machine()
    for _ in range(SAMPLES):
        start = time.thread_time()
        system._write(sampler())
        system._news()
        seconds.append(time.thread_time() - start)
    return seconds


def page(result: dict[str, Any], settings: dict[str, Any]) -> str:
    times = {name: [one[name] for one in result["rounds"]] for name in (NOTHING, NORMS, SYSTEM)}
    step = statistics.median(times[NOTHING])
    norm, sample = (statistics.median(result[name]) for name in ("norms", "samples"))
    shares = norm / step / TRACK.group_norms_every, sample / TRACK.system_seconds
    costs = table(
        ["", "CPU time of one", "in a run", "share of the step"],
        [
            "gradient norms by layer",
            f"{1000 * norm:.2f} ms",
            f"every {TRACK.group_norms_every} steps",
            f"{shares[0]:.4%}",
        ],
        ["a sample of the machine", f"{1000 * sample:.2f} ms", f"every {TRACK.system_seconds:g} s", f"{shares[1]:.4%}"],
    )
    often = table(
        ["", ""],
        ["gradient norms in every step", spread(ratios(times[NORMS], times[NOTHING]), ".3f")],
        ["ten samples per second", spread(ratios(times[SYSTEM], times[NOTHING]), ".3f")],
    )
    return f"""# What measuring costs

Two ranks, {result["device"]}, fp32, ZeRO 1: {settings["layers"]} layers of {settings["hidden"]}, \
{settings["micro_batch_size"]} rows of {settings["seq_len"]} each.
{settings["rounds"]} rounds of {settings["steps"]} steps per side, in turns. A step takes {1000 * step:.1f} ms (median).

{costs}

Both: {sum(shares):.3%} of the step.

If they are measured far too often: time of a step against one without measurements in the same round (median, smallest
and largest). The differences between rounds come from other work on the machine.

{often}"""


if __name__ == "__main__":
    run(main)
