"""The scaling model of `maskwright plan` against real steps: gloo ranks behind throttled links.

    python -m benchmarks.scaling
    python -m benchmarks.scaling --quick --procs 1 2 --out /tmp/scaling.md

Each rank is a process in its own network namespace with a link of limited rate. The prediction uses constants that are
measured apart from the steps: compute without collectives while as many ranks compute, the link by a plain socket
between two ranks, and the share of a link that gloo's collectives use, at another rate and size. It needs root, ip and
tc; without them it prints why and measures nothing.
"""

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.engine_ranks import config_of, model_of
from benchmarks.harness import ROOT, options, run, table, warn_if_busy, write_page
from benchmarks.scaling_ranks import CALIBRATION_ELEMENTS, CALIBRATION_MBIT
from benchmarks.throttled_links import DEVICE, Links, address, obstacle, throttled_links
from data_prep.common.errors import UserError
from pretrain.model import EncoderCosts
from pretrain.planning.cluster_speed import Scheme, communication
from pretrain.planning.collectives import Cluster, GpuModel, Network
from pretrain.planning.scaling import Compute, StepTime, step_time

MODEL = {"layers": 2, "hidden": 256, "vocab_size": 4096, "seq_len": 128, "micro_batch_size": 8, "precision": "fp32"}
SETTINGS: dict[str, Any] = MODEL | {"accumulation": 1, "steps": 7, "rates": [50, 200]}
QUICK = {"hidden": 128, "vocab_size": 1024, "micro_batch_size": 4, "steps": 3, "rates": [80]}
NO_LINK = [1000]  # the link of a single rank carries nothing
WITHIN = 0.15  # relative difference of predicted and measured time
_LIMIT = 300  # seconds of the ranks of one size
_PORT = "29400"


def main() -> None:
    parser = options(__doc__, "scaling")
    parser.add_argument("--procs", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of ranks")
    parser.add_argument("--quick", action="store_true", help="a small model, few steps and one rate, to try the script")
    args = parser.parse_args()
    if reason := obstacle():
        print(f"skipped: {reason}")
        return
    warn_if_busy()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by a signal"))
    settings = SETTINGS | (QUICK if args.quick else {})
    found = {procs: measured(procs, settings if procs > 1 else settings | {"rates": NO_LINK}) for procs in args.procs}
    write_page(args.out, page(found, settings), ("torch", "deepspeed"))


def measured(procs: int, settings: dict[str, Any]) -> dict[str, Any]:
    """What rank 0 of `procs` ranks has measured, see benchmarks.scaling_ranks."""
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder, throttled_links(procs) as links:
        out = Path(folder) / "result.json"
        with _ranks(links, settings, out) as processes:
            for process in processes:
                if process.wait(_LIMIT):
                    raise UserError(f"a rank of {procs} ended with exit code {process.returncode}")
        result: dict[str, Any] = json.loads(out.read_text())
    print(f"{procs} ranks: measured", flush=True)
    return result


@contextlib.contextmanager
def _ranks(links: Links, settings: dict[str, Any], out: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    processes = []
    words = [
        sys.executable,
        "-m",
        "benchmarks.scaling_ranks",
        json.dumps(settings | {"prefix": links.prefix}),
        str(out),
    ]
    try:
        for rank in range(links.count):
            command = [*links.inside(rank), *words]
            processes.append(subprocess.Popen(command, env=_environment(rank, links.count), cwd=ROOT))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _environment(rank: int, count: int) -> dict[str, str]:
    of_ranks = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}
    fixed = {"MASTER_ADDR": address(0), "MASTER_PORT": _PORT, "GLOO_SOCKET_IFNAME": DEVICE, "DS_ACCELERATOR": "cpu"}
    fixed |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore::FutureWarning"}
    return os.environ | fixed | {name: str(value) for name, value in of_ranks.items()}


def predicted(procs: int, constants: dict[str, Any], link: float, settings: dict[str, Any]) -> StepTime:
    """The step by the model, with one rank on each node.

    Args:
        constants: of benchmarks.scaling_ranks.
        link: bytes per second.

    gloo sends as many bytes as the rings of the model: in its all-to-all a rank sends each other rank a part, and its
    all-gather is a ring. Both use only a part of the link. The engine's step has two all-reduces of a few bytes.
    """
    sizes, scheme = EncoderCosts(model_of(settings).shape).sizes, Scheme.of(config_of(settings, stage=1))
    reduce, gather = (
        communication(sizes, scheme, 4, _cluster(procs, constants["shares"].get(name, 1.0) * link, constants["hop"]))
        for name in ("reduce", "gather")
    )
    optimizer = constants["optimizer"]
    passes = statistics.median(constants["alone"]) - optimizer
    work = Compute(passes, settings["accumulation"], optimizer)
    return step_time(work, replace(reduce, gather=gather.gather, small=2 * 2 * (procs - 1) * constants["hop"]))


def _cluster(procs: int, bandwidth: float, hop: float) -> Cluster:
    return Cluster(procs, 1, GpuModel(math.inf, math.inf, gigabytes=0), Network(bandwidth, hop))


def page(found: dict[int, dict[str, Any]], settings: dict[str, Any]) -> str:
    rows, differences = [], []
    for procs, result in found.items():
        for rate, one in result["rates"].items():
            step = predicted(procs, result, one["link"], settings)
            differences.append(step.seconds / statistics.median(one["steps"]) - 1)
            link = [rate, f"{one['link'] / 1e6:.2f}"] if procs > 1 else [""] * 2
            rows.append([f"{procs}", *link, *_parts(step), *_seconds(one["steps"]), f"{differences[-1]:+.1%}"])
    worst = max(map(abs, differences))
    parts = ["compute", "gradients", "weights", "small", "optimizer"]
    header = ["ranks", "limit, Mbit/s", "link, MB/s", *parts, "predicted", "measured", "difference"]
    parameters = next(iter(found.values()))["parameters"]
    return f"""# Predicted and measured steps

The model of `maskwright plan --nodes` against steps of the engine with gloo and ZeRO 1, each rank in a network
namespace behind a limited link. Seconds. Predicted: from constants that were measured apart from the steps. Measured:
median of {settings["steps"]} times between the ends of steps (smallest to largest).
{"All are" if worst <= WITHIN else "Not all are"} within {WITHIN:.0%}; the largest difference is {worst:.1%}.
Nothing here was measured on a GPU.

{table(header, *rows)}

Constants of the collectives:

{table(["ranks", "hop, ms", "share of the link, all-to-all", "all-gather"], *_constants(found))}

- Model: BERT, {settings["layers"]} layers x {settings["hidden"]}, {parameters:,} parameters, fp32; each rank
  {settings["micro_batch_size"]} rows of {settings["seq_len"]} tokens per step, one thread.
- compute: a step of the engine whose collectives do nothing, without the optimizer, while all ranks compute. They
  share {os.cpu_count()} cores, so compute takes longer with more ranks. optimizer: AdamW on a rank's part, likewise.
- link: a plain TCP connection between two ranks under the limit (tc's token bucket, both directions).
- Not in the model: collectives slow compute down, as TCP needs the cores too.
- share: of the link that gloo uses, by two collectives at a time, as in a step, of {CALIBRATION_ELEMENTS * 2 / 2**20:g}
  MiB each at {CALIBRATION_MBIT} Mbit/s, which is the limit of no step.
- hop: of an all-reduce of a few bytes. small: two of them.
- gradients, weights: as many bytes as a ring sends, {_overlap(settings)}; what compute does not hide.
- A single all-to-all of two ranks sends first in one direction and then in the other: a pair has one connection, where
  "ready to receive" waits behind the data."""


def _constants(found: dict[int, dict[str, Any]]) -> list[list[str]]:
    return [
        [f"{procs}", f"{1e3 * one['hop']:.3f}", *(f"{share:.0%}" for share in one["shares"].values())]
        for procs, one in found.items()
        if procs > 1
    ]


def _parts(step: StepTime) -> list[str]:
    parts = step.compute, step.reduce, step.gather, step.small, step.optimizer, step.seconds
    return [f"{part:.3f}" for part in parts]


def _seconds(steps: list[float]) -> list[str]:
    return [f"{statistics.median(steps):.3f} ({min(steps):.3f} to {max(steps):.3f})"]


def _overlap(settings: dict[str, Any]) -> str:
    scheme = Scheme.of(config_of(settings, stage=1))
    return "during the passes" if scheme.overlap_reduce else "after the backward pass"


if __name__ == "__main__":
    run(main)
