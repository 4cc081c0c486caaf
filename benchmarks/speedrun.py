"""Time and tokens until a held-out loss: the usual recipe in `transformers.Trainer`, and Maskwright's.

    python benchmarks/speedrun.py --input books.jsonl.zst --tokenizer tokenizers/bert
    python benchmarks/speedrun.py --input books.jsonl.zst --tokenizer tokenizers/bert --gpu --rows 1024
        --documents 60000 --tokens 200000000 --lr 3e-4 6e-4 1e-3

1. The usual recipe (AdamW, linear schedule, 15% masked) is trained by Maskwright at several learning rates, to find its
   best one for so many tokens: the same steps, for less time than the Trainer would need.
2. transformers.Trainer trains it at that rate. The loss at the end of its schedule is the target.
3. Maskwright's recipe is trained for several lengths, each with a schedule of its own, to find the shortest that gets
   there; then, as long, without each of its ideas, and with each other one; with --each the usual recipe with each.

All runs are processes of their own, one after the other, with as many threads, on the same documents, and are measured
by the same held-out text under the same masks. The seconds of training count, evaluation and the start of processes do
not. What was run already in --work is not run again: an interrupted measurement goes on.
"""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.machine import conditions, warn_if_busy
from benchmarks.speedrun_curves import STEP, Curve, best, draw, next_rung, row
from benchmarks.speedrun_recipes import BASE, IDEAS, OURS, SEQ_LEN, SMALL, WARMUP, values_of_ideas
from benchmarks.speedrun_sides import (
    Bench,
    check_alike,
    faster_in_bf16,
    hugging_face,
    in_its_faster_precision,
    maskwright,
    prepare,
    unigram_loss,
)
from data_prep.errors import UserError
from data_prep.files import atomic_writer


def main() -> None:
    args = arguments()
    load = warn_if_busy()
    if find_spec("accelerate") is None:
        raise UserError("transformers.Trainer needs accelerate: pip install 'maskwright[benchmark]'")
    size = BASE if args.gpu else SMALL
    bench = Bench(args.work, args.tokenizer.absolute(), size, args.tokens, args.points, args.rows, args.threads)
    prepare(bench, args.input, args.documents)
    bench = in_its_faster_precision(bench, args.lr[0])
    pilots = [maskwright(bench, f"usual recipe, Maskwright, {lr:g}", [], lr, args.tokens) for lr in args.lr]
    lr, pilot = min(zip(args.lr, pilots, strict=True), key=lambda found: found[1].end.loss)
    bf16 = faster_in_bf16(bench, lr)
    usual = hugging_face(bench, lr, bf16)
    target = usual.end.loss
    tried = search(bench, target, lr, round(args.first * args.tokens), args.tries)
    ours = best(list(tried.values()), target) or min(tried.values(), key=lambda curve: curve.end.loss)
    length = next(tokens for tokens, curve in tried.items() if curve is ours)
    alike = check_alike(bench, ours.name, OURS, lr, length, ours.end.loss)
    curves = [usual, ours, pilot]
    curves += [maskwright(bench, f"ours without {idea}", [i for i in OURS if i != idea], lr, length) for idea in OURS]
    others = [idea for idea in IDEAS if idea not in OURS]
    curves += [maskwright(bench, f"ours and {idea}", [*OURS, idea], lr, length) for idea in others]
    curves += [maskwright(bench, f"usual and {idea}", [idea], lr, length) for idea in IDEAS if args.each]
    found = f"""- Learning rates of the usual recipe, trained by Maskwright: {ends(pilots)}.
- Lengths of our recipe: {ends(list(tried.values()))}.
- Each side in the precision in which it is faster here: transformers.Trainer in {"bf16" if bf16 else "fp32"},
  Maskwright in {bench.precision}.
- A unigram model of the training text has a held-out loss of {unigram_loss(bench):.3f}.
- The export of our run, measured as the other side is: {alike:.4f}; the run itself said {ours.end.loss:.4f}."""
    write_report(args, curves, found, load)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, nargs="+", help="text as for `maskwright prep run`")
    parser.add_argument("--tokenizer", required=True, type=Path, help="a folder with a fast BERT tokenizer")
    parser.add_argument("--documents", type=int, default=4000, help="of the input, the first so many")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="slots that the usual recipe is trained on")
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3], help="rates for the usual recipe")
    parser.add_argument("--first", type=float, default=0.3, help="length of our first try, as a share of --tokens")
    parser.add_argument("--tries", type=int, default=3, help="lengths of our recipe that are tried")
    parser.add_argument("--each", action="store_true", help="also the usual recipe with each idea")
    parser.add_argument("--points", type=int, default=10, help="held-out losses of a run")
    parser.add_argument("--rows", type=int, default=256, help="held-out rows")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each run")
    parser.add_argument("--gpu", action="store_true", help="BERT-base on a GPU instead of 4 x 256 on a CPU")
    parser.add_argument("--work", type=Path, default=Path("runs/speedrun"), help="folder for what was run")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/speedrun.md")
    args = parser.parse_args()
    args.work = args.work.absolute()
    return args


def search(bench: Bench, target: float, lr: float, first: int, tries: int) -> dict[int, Curve]:
    """Our recipe at lengths around `first` slots, each STEP times the next shorter one: curves by length."""
    curves: dict[int, Curve] = {}
    reached: dict[int, bool] = {}
    while (rung := next_rung(reached, tries)) is not None:
        tokens = round(first * STEP**rung)
        curves[tokens] = maskwright(bench, f"our recipe, {tokens / 1e6:.2f} M tokens", OURS, lr, tokens)
        reached[rung] = curves[tokens].reaches(target) is not None
    return curves


def ends(curves: list[Curve]) -> str:
    return "; ".join(f"{curve.name}: {curve.end.loss:.3f} after {curve.end.seconds:,.0f} s" for curve in curves)


def write_report(args: argparse.Namespace, curves: list[Curve], found: str, load: float) -> None:
    usual, ours = curves[0].end, curves[1]
    size, target = (BASE if args.gpu else SMALL), usual.loss
    reached = ours.reaches(target)
    said = "Our recipe does not reach it."
    if reached:
        said = f"Our recipe reaches it {usual.seconds / reached.seconds:.2f} times as fast, with "
        said += f"{usual.tokens / reached.tokens:.2f} times fewer tokens."
    header = ["", "tokens", "seconds", "times as fast", "held-out loss at the end"]
    lines = [header, ["---", "---:", "---:", "---:", "---:"], *(row(curve, target, usual) for curve in curves)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    ideas = "\n".join(f"- {name}: `{values}`" for name, values in values_of_ideas(size).items())
    report = f"""# Time to a held-out loss

The target is the loss that the usual recipe has at the end of its schedule in transformers.Trainer: {target:.3f} nats.
{said}

{table}

![Held-out loss over seconds and tokens]({args.out.stem}.png)

- Model: BERT, {size.layers} layers x {size.hidden}, without dropout, rows of {SEQ_LEN}; {args.threads} threads, one
  process. Seconds are those of training steps and what lies between them, evaluation and start left out.
- Held out: {args.rows} rows, 15% of their tokens masked, the same text and masks for all. What
  transformers.Trainer trains is read with and without [CLS] and [SEP] around each piece, and the lower loss counts.
- Where a loss is reached is read off straight lines between {args.points} measured ones; a run may reach it before its
  schedule ends.
- The usual recipe: AdamW, linear schedule with {WARMUP:.0%} warm-up, batches of {size.batch_size} rows, 15% masked,
  rows concatenated and cut as in run_mlm.py, so that its rows are as full as ours: packing gives no tokens here.
- Ours is the usual recipe with {", ".join(OURS)}; "without" one, the usual recipe's value stands in its place. Runs
  "without" and "and" are as long as ours: what does not reach the target then might with more steps.
{found}

{ideas}

{conditions("speedrun.py", ("torch", "transformers", "deepspeed"), load)}"""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw(curves, target, args.out.with_suffix(".png"), "Held-out loss, 15% masked")
    with atomic_writer(args.out) as file:
        file.write(report.encode())
    print(table)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
