"""Step time of the engine, against plain PyTorch DDP with the same model, kernels, optimizer and batches.

    python -m benchmarks.engine
    python -m benchmarks.engine --quick --out /tmp/engine.md

It also measures what a checkpoint costs: how long training stops, and the time until it is committed and to load it.

Every rank holds DDP and the engine with each ZeRO stage in one process. They take turns in each round, so that other
work on the machine affects all of them. On GPUs there is one rank for each; on a CPU --procs ranks of one thread, fp32.
"""

import argparse
from typing import Any

import torch

from benchmarks.engine_ranks import compare_engines, on_ranks
from benchmarks.harness import options, ratios, run, spread, table, warn_if_busy, write_page

CPU = {"layers": 4, "hidden": 256, "vocab_size": 8192, "seq_len": 128, "micro_batch_size": 8, "precision": "fp32"}
GPU = {"layers": 12, "hidden": 768, "vocab_size": 30528, "seq_len": 512, "micro_batch_size": 64, "precision": "bf16"}
QUICK = {"layers": 2, "hidden": 128, "vocab_size": 1024, "rounds": 3, "steps": 2}


def main() -> None:
    args = arguments()
    warn_if_busy()
    settings = settings_of(args)
    result = on_ranks(compare_engines, settings, args.procs, args.device)
    write_page(args.out, page(result, settings, args.procs), ("torch", "deepspeed"))


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "engine")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ranks = torch.cuda.device_count() if device == "cuda" else 2
    parser.add_argument("--procs", type=int, default=ranks, help="ranks")
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3], choices=range(4), help="ZeRO stages")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--rounds", type=int, default=15, help="each measures every side once")
    parser.add_argument("--steps", type=int, default=10, help="per side and round")
    parser.add_argument("--quick", action="store_true", help="a small model and few steps, to try the script")
    args = parser.parse_args()
    args.device = device
    return args


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {name: getattr(args, name) for name in ("stages", "accumulation", "rounds", "steps")}
    settings |= {"skip": 3} | (GPU if args.device == "cuda" else CPU)
    if args.device == "cuda":  # stage 0 has no bf16
        settings["stages"] = [stage for stage in args.stages if stage]
    return settings | {"micro_batch_size": 4} | QUICK if args.quick else settings


def page(result: dict[str, Any], settings: dict[str, Any], procs: int) -> str:
    norms = {name: round(norm, 4) for name, (_, _, norm, *_) in result["last"].items()}
    return f"""# The engine against plain DDP

Time of an optimizer step: medians of {settings["rounds"]} rounds of {settings["steps"]} steps, smallest and largest.
In each round all sides take turns; a ratio compares two sides of one round. Above 1, the engine is faster.

{step_table(result["rounds"])}

{save_table(result["saves"])}

- Model: BERT, {settings["layers"]} layers x {settings["hidden"]}, {result["parameters"]:,} parameters,
  {settings["precision"]}; {procs} ranks on {result["device"].split(":")[0]}, each {settings["accumulation"]} x
  {settings["micro_batch_size"]} rows of {settings["seq_len"]} tokens per step, two documents in each row.
- ddp: DistributedDataParallel with gradient_as_bucket_view, clip_grad_norm_ and the same fused AdamW. In bf16 as in the
  engine: weights and gradients in bf16, fp32 copies of the weights for the optimizer. zero-N: the engine with
  zero.stage N.
- Both sum the loss over the ranks in each step. Gradient norms of the last step: {norms}."""


def step_table(rounds: list[dict[str, float]]) -> str:
    times = {name: [one[name] for one in rounds] for name in sorted(rounds[0])}
    rows = [
        [name, spread([1000 * second for second in seconds], ".1f"), spread(ratios(times["ddp"], seconds), ".3f")]
        for name, seconds in times.items()
    ]
    return table(["", "ms per step", "speed against DDP"], *rows)


def save_table(saves: dict[str, float]) -> str:
    rows = []
    for kind in ("synchronous", "asynchronous"):
        times = [1000 * saves[f"{kind} {name}"] for name in ("stall", "committed", "step meanwhile")]
        rows.append([kind, *(f"{time:.1f} ms" if time else "-" for time in times)])
    ms = {name: f"{1000 * saves[name]:.1f} ms" for name in ("copy", "step", "verify", "load")}
    return f"""{table(["checkpoint", "training stops for", "committed after", "a step meanwhile"], *rows)}

Copying the state to host memory alone takes {ms["copy"]}, a step while nothing is saved {ms["step"]}. A checkpoint has
{saves["bytes"] / 1e6:,.1f} MB. A started process verifies it in {ms["verify"]} and loads it in {ms["load"]}. Medians of
rank 0."""


if __name__ == "__main__":
    run(main)
