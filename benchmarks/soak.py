"""One run, interrupted and taken up again hundreds of times, against the same run left alone.

    python benchmarks/soak.py --faults 250

A tiny model on two processes gets SIGKILL (a rank, all ranks, the launcher, the command), SIGTERM, SIGUSR1 or a STOP
file at random moments: while it starts, between steps, in the commit of a checkpoint, in an evaluation. What is left is
checked each time; at the end, losses, weights and optimizer state are compared with the run left alone, bit for bit.
Writes the report to --out, and fails without one if anything was wrong. It needs no quiet machine.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.machine import conditions
from data_prep.files import atomic_writer
from tests.system.soak.faults import MOMENTS
from tests.system.soak.soak import CHECKPOINT_STEPS, EVAL_STEPS, PROCESSES, Report, soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=250, help="how often the run is interrupted")
    parser.add_argument("--seed", type=int, default=0, help="draws the faults and their moments")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/soak.md")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = soak(Path(folder), args.faults, args.seed, lambda line: print(line, flush=True))
    text = f"{described(report)}\n{conditions('soak.py', ('torch', 'deepspeed', 'mlflow'), load)}"
    print(text)
    with atomic_writer(args.out) as file:
        file.write(text.encode())


def described(report: Report) -> str:
    """What was done and what came of it, as Markdown."""
    return f"""# A run interrupted {report.faults.total()} times

BERT, 2 layers x 32, fp32, {PROCESSES} processes with ZeRO-1 on CPU, {report.steps:,} steps, a checkpoint every
{CHECKPOINT_STEPS} steps, an evaluation every {EVAL_STEPS}. At a random moment something was done to it, then the same
command was given again, until it was left to complete. Faults by kind, and by the moment for which they were meant:

{table(report.faults)}

After each fault:

- all processes of the run had ended, at most {report.longest_end:.1f} s later (the limit is 60 s);
- exit code and `maskwright status` said failed or stopped, whichever was right;
- every committed checkpoint matched its checksums, and the newest was never older than before;
- a partial checkpoint was left {report.leftovers} times, and removed by a later start.

Steps that were lost, and done again: none after a request to stop; after a kill {report.most_lost} at most,
{report.repeated:,} in all.

The same run left alone has, bit for bit, at every step and in every attempt at it, the same training loss, gradient
norm, masked accuracy, learning rate, rows of the batch with their checksum, and held-out loss; and at the end the same
weights and optimizer state. MLflow has one run, with every step once.

{report.seconds:,.0f} s for {report.faults.total() + 1} starts.
"""


def table(faults: Counter[tuple[str, str]]) -> str:
    """Faults by kind and moment."""
    lines = ["| | " + " | ".join(MOMENTS) + " | all |", "|---" + "|---:" * (len(MOMENTS) + 1) + "|"]
    for kind in [*sorted({kind for kind, _ in faults}), "all"]:
        counts = [sum(n for (k, m), n in faults.items() if m == moment and kind in (k, "all")) for moment in MOMENTS]
        lines.append(f"| {kind} | " + " | ".join(map(str, [*counts, sum(counts)])) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
