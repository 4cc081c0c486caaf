"""What it costs to measure gradient norms of the model's parts, and what the machine does, as a share of the step.

    python benchmarks/measuring.py
    python benchmarks/measuring.py --quick --out /tmp/measuring.md

Two ranks of one thread train a small model. In each round the same engine takes steps with nothing measured, with the
norms in every step, and with ten samples of the machine a second: far more often than a run does by default (every 100
steps, every 30 seconds), so that there is something to see. From the CPU time of one measurement follows the share.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.engine import CPU, measure
from benchmarks.machine import conditions, warn_if_busy
from data_prep.files import atomic_writer
from pretrain.config import Config

TRACK = Config.model_fields["track"].default  # the intervals of a run


def main() -> None:
    args = arguments()
    load = warn_if_busy()
    settings = CPU | {"stage": 1, "rounds": args.rounds, "steps": args.steps, "skip": 3}
    if args.quick:
        settings |= {"layers": 2, "hidden": 128, "vocab_size": 1024, "rounds": 3, "steps": 2}
    report = report_of(measure(settings, 2, "cpu", "benchmarks.measuring_sides"), settings, load)
    print(report)
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="each measures every side once")
    parser.add_argument("--steps", type=int, default=10, help="of a side in a round")
    parser.add_argument("--quick", action="store_true", help="a small model and few steps: to see that it works")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/measuring.md")
    return parser.parse_args()


def report_of(found: dict[str, Any], settings: dict[str, Any], load: float) -> str:
    model = f"{settings['layers']} layers of {settings['hidden']}, {settings['micro_batch_size']} rows of"
    turns = f"{settings['rounds']} rounds of {settings['steps']} steps a side, in turns"
    step = statistics.median(one["nothing"] for one in found["rounds"])
    norm, sample = (statistics.median(found[name]) for name in ("norms", "samples"))
    shares = norm / step / TRACK.group_norms_every, sample / TRACK.system_seconds
    return f"""# What measuring costs

Two ranks, {found["device"]}, fp32, ZeRO {settings["stage"]}: {model}
{settings["seq_len"]} each. {turns}. A step takes {1000 * step:.1f} ms (median).

| | CPU time of one | a run does it | share of the step |
|---|---:|---:|---:|
| gradient norms of parts | {1000 * norm:.2f} ms | every {TRACK.group_norms_every} steps | {shares[0]:.4%} |
| a sample of the machine | {1000 * sample:.2f} ms | every {TRACK.system_seconds:g} s | {shares[1]:.4%} |

Both together: {sum(shares):.3%} of the step. Expected beforehand, by the bytes that are read: less than 0.05%.

Done far too often, the time of a step beside one with nothing measured in the same round (median, least to most); what
lies in the spread is other work on the machine:

| | |
|---|---:|
| gradient norms in every step | {_beside(found["rounds"], "group norms")} |
| ten samples a second | {_beside(found["rounds"], "system")} |

{conditions("measuring.py", ("torch", "deepspeed", "psutil"), load)}"""


def _beside(rounds: list[dict[str, float]], side: str) -> str:
    ratios = [one[side] / one["nothing"] for one in rounds]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    main()
