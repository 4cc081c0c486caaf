"""Soak: one run, interrupted and resumed hundreds of times, against the same run without interruption.

    python -m benchmarks.soak --faults 250

A tiny model on two processes gets SIGKILL (a rank, all ranks, the launcher, the command), SIGTERM, SIGUSR1 or a STOP
file at random moments: at the start, between steps, in the commit of a checkpoint, in an evaluation. The run folder is
checked each time. At the end, losses, weights and optimizer state are compared with the uninterrupted run, bit
for bit. If anything is wrong, it fails and writes no page. Other work on the machine does no harm.
"""

import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.harness import options, table, write_page
from tests.system.soak.faults import MOMENTS
from tests.system.soak.soak import CHECKPOINT_STEPS, EVAL_STEPS, PROCESSES, Report, soak


def main() -> None:
    parser = options(__doc__, "soak")
    parser.add_argument("--faults", type=int, default=250, help="number of interruptions")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults and their moments")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = soak(Path(folder), args.faults, args.seed, lambda line: print(line, flush=True))
    write_page(args.out, page(report), ("torch", "deepspeed", "mlflow"))


def page(report: Report) -> str:
    """The interruptions and their effects, as Markdown."""
    return f"""# A run interrupted {report.faults.total()} times

BERT, 2 layers x 32, fp32, {PROCESSES} processes with ZeRO-1 on CPU, {report.steps:,} steps, a checkpoint every
{CHECKPOINT_STEPS} steps, an evaluation every {EVAL_STEPS}. It was interrupted at random moments, and the same command
was run again each time. Faults by kind, and by the planned moment:

{fault_table(report.faults)}

After each fault:

- all processes of the run had ended, at most {report.longest_end:.1f} s later (the limit is 60 s);
- exit code and `maskwright status` correctly reported failed or stopped;
- every committed checkpoint matched its checksums, and the newest was never older than before;
- a partial checkpoint was left {report.leftovers} times, and a later start removed it.

Steps that were lost and repeated: none after a request to stop; at most {report.most_lost} after a kill,
{report.repeated:,} in all.

The uninterrupted run has, bit for bit, the same training loss, gradient norm, masked accuracy, learning rate, rows of
the batch with their checksum, and held-out loss at every step, and at the end the same weights and optimizer state.
MLflow has one run with every step once.

{report.seconds:,.0f} s for {report.faults.total() + 1} starts.
"""


def fault_table(faults: Counter[tuple[str, str]]) -> str:
    rows = []
    for kind in [*sorted({kind for kind, _ in faults}), "all"]:
        counts = [sum(n for (k, m), n in faults.items() if m == moment and kind in (k, "all")) for moment in MOMENTS]
        rows.append([kind, *map(str, [*counts, sum(counts)])])
    return table(["", *MOMENTS, "all"], *rows)


if __name__ == "__main__":
    main()
