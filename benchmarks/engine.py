"""The engine's step time against that of plain PyTorch DDP: the same model, kernels, optimizer and batches.

    python benchmarks/engine.py
    python benchmarks/engine.py --quick --out /tmp/engine.md

And what a checkpoint costs: how long training stands still, until it is committed, on disk, and to load it again.

Every rank holds both, and the ZeRO stages of the engine, in one process; they take turns in each round, so that what
else the machine does hits all of them. On GPUs, one rank for each; on a CPU, --procs ranks of one thread, in fp32.
Prints a table and writes it to --out.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

import torch

from benchmarks.machine import conditions, warn_if_busy
from data_prep.errors import UserError
from data_prep.files import atomic_writer

CPU = {"layers": 4, "hidden": 256, "vocab_size": 8192, "seq_len": 128, "micro_batch_size": 8, "precision": "fp32"}
GPU = {"layers": 12, "hidden": 768, "vocab_size": 30528, "seq_len": 512, "micro_batch_size": 64, "precision": "bf16"}


def main() -> None:
    args = arguments()
    load = warn_if_busy()
    settings = settings_of(args)
    found = measure(settings, args.procs, args.device)
    print(table_of(found), saves_of(found["saves"]), sep="\n\n")
    with atomic_writer(args.out) as file:
        file.write(report_of(found, settings, args, load).encode())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ranks = torch.cuda.device_count() if device == "cuda" else 2
    parser.add_argument("--procs", type=int, default=ranks, help="ranks")
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3], choices=range(4), help="ZeRO stages")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--rounds", type=int, default=15, help="each measures every side once")
    parser.add_argument("--steps", type=int, default=10, help="of a side in a round")
    parser.add_argument("--quick", action="store_true", help="a small model and few steps: to see that it works")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/engine.md")
    args = parser.parse_args()
    args.device = device
    return args


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    shape = dict(GPU if args.device == "cuda" else CPU)
    if args.device == "cuda":  # bf16 has no stage 0
        args.stages = [stage for stage in args.stages if stage]
    if args.quick:
        shape |= {"layers": 2, "hidden": 128, "vocab_size": 1024, "micro_batch_size": 4}
        args.rounds, args.steps = 3, 2
    rest = {name: getattr(args, name) for name in ("stages", "accumulation", "rounds", "steps")}
    return shape | rest | {"skip": 3}


def measure(
    settings: dict[str, Any], procs: int, device: str, sides: str = "benchmarks.engine_sides"
) -> dict[str, Any]:
    """What the module `sides` found on `procs` ranks of this machine."""
    with tempfile.TemporaryDirectory(prefix="engine-") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        given, result, saves = (Path(folder) / name for name in ("settings.json", "result.json", "saves"))
        saves.mkdir()
        given.write_text(json.dumps(settings))
        shared = {
            "WORLD_SIZE": str(procs),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(probe.getsockname()[1]),
            "DS_ACCELERATOR": device,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore::FutureWarning",
        }
        probe.close()
        command = [sys.executable, "-m", sides, str(given), str(result), str(saves)]
        ranks = []
        for rank in range(procs):
            environment = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise UserError(f"a rank failed:\n{outputs[0][-4000:]}")
        return json.loads(result.read_text())


def table_of(found: dict[str, Any]) -> str:
    """Milliseconds a step, and DDP's time over each side's in the same round."""
    rounds = found["rounds"]
    lines = ["| | ms a step | speed beside DDP |", "|---|---:|---:|"]
    for name in rounds[0]:
        times = [1000 * one[name] for one in rounds]
        ratios = [one["ddp"] / one[name] for one in rounds]
        spread = f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})"
        beside = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        lines.append(f"| {name} | {spread} | {beside} |")
    return "\n".join(lines)


def saves_of(saves: dict[str, float]) -> str:
    """What a checkpoint costs."""
    lines = ["| checkpoint | training stands still | committed after | a step meanwhile |", "|---|---:|---:|---:|"]
    for kind in ("synchronous", "asynchronous"):
        times = [1000 * saves[f"{kind} {name}"] for name in ("stall", "committed", "step meanwhile")]
        lines.append(f"| {kind} | {' | '.join(f'{time:.1f} ms' if time else '-' for time in times)} |")
    rest = {name: f"{1000 * saves[name]:.1f} ms" for name in ("copy", "step", "verify", "load")}
    return (
        "\n".join(lines)
        + f"""

The copy of the state to host memory alone takes {rest["copy"]}, a step while nothing is saved {rest["step"]}. A
checkpoint has {saves["bytes"] / 1e6:,.1f} MB; to go on from it takes {rest["verify"]} to verify it and {rest["load"]}
to load it, once the processes are there. Medians of rank 0.
"""
    )


def report_of(found: dict[str, Any], settings: dict[str, Any], args: argparse.Namespace, load: float) -> str:
    norms = {name: round(norm, 4) for name, (_, _, norm, *_) in found["last"].items()}
    return f"""# The engine beside plain DDP

Time of an optimizer step, medians over {settings["rounds"]} rounds of {settings["steps"]} steps with least and most. In
each round all sides take turns; a ratio compares two sides of one round. Above 1, the engine is faster.

{table_of(found)}

{saves_of(found["saves"])}
- Model: BERT, {settings["layers"]} layers x {settings["hidden"]}, {found["parameters"]:,} parameters,
  {settings["precision"]}; {args.procs} ranks on {found["device"].split(":")[0]}, each {settings["accumulation"]} x
  {settings["micro_batch_size"]} rows of {settings["seq_len"]} tokens a step, two documents in each row.
- ddp: DistributedDataParallel with gradient_as_bucket_view, clip_grad_norm_, the same fused AdamW; in bf16 as the
  engine has it: weights and gradients in bf16, fp32 copies of the weights for the optimizer. zero-N:
  pretrain.engine.engine.Engine with zero.stage N.
- Both sum the loss over the ranks at each step. Gradient norms of the last step: {norms}.

{conditions("engine.py", ("torch", "deepspeed"), load)}"""


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
