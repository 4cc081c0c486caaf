"""Time and tokens to reach a held-out loss: the usual recipe in `transformers.Trainer`, and Maskwright's recipe.

    python -m benchmarks.speedrun --input books.jsonl.zst --tokenizer tokenizers/bert
    python -m benchmarks.speedrun --input books.jsonl.zst --tokenizer tokenizers/bert --gpu --rows 1024
        --documents 60000 --tokens 200000000 --lr 3e-4 6e-4 1e-3

1. Maskwright trains the usual recipe (AdamW, linear schedule, 15% masked) at several learning rates, to find the best.
   This takes less time than with the Trainer.
2. transformers.Trainer trains it at that rate. The loss at the end of its schedule is the target.
3. Maskwright trains its own recipe for several lengths, each with its own schedule, to find the shortest that reaches
   the target; then as long without each of its ideas and with each other idea; with --each, also the usual recipe with
   each idea.

Runs are separate processes, one after the other, with the same threads, documents, held-out text and masks. The time of
evaluations and of starts does not count. Results in --work are used again, so an interrupted measurement continues.
"""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness import options, run, table, warn_if_busy, write_page
from benchmarks.speedrun_curves import STEP, Curve, best, draw, next_rung, row
from benchmarks.speedrun_recipes import BASE, IDEAS, OURS, SEQ_LEN, SMALL, WARMUP, values_of_ideas
from benchmarks.speedrun_sides import Bench, check_alike, hugging_face, maskwright, prepare, unigram_loss
from data_prep.common.errors import UserError
from pretrain.engine import slow_precision


def main() -> None:
    args = arguments()
    warn_if_busy()
    if find_spec("accelerate") is None:
        raise UserError("transformers.Trainer needs accelerate: pip install 'maskwright[benchmark]'")
    size = BASE if args.gpu else SMALL
    precision = "fp32" if slow_precision("bf16", "cuda" if args.gpu else "cpu") else "bf16"
    tokenizer = args.tokenizer.absolute()
    bench = Bench(args.work, tokenizer, size, args.tokens, args.points, args.rows, args.threads, precision)
    prepare(bench, args.input, args.documents)
    pilots = [maskwright(bench, f"usual recipe, Maskwright, {lr:g}", [], lr, args.tokens) for lr in args.lr]
    lr, pilot = min(zip(args.lr, pilots, strict=True), key=lambda found: found[1].end.loss)
    usual = hugging_face(bench, lr)
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
    notes = f"""- Learning rates of the usual recipe in Maskwright: {ends(pilots)}.
- Lengths of our recipe: {ends(list(tried.values()))}.
- Both sides train in {bench.precision}.
- A unigram model of the training text has a held-out loss of {unigram_loss(bench):.3f}.
- The export of our run, measured as the other side: {alike:.4f}; the run reported {ours.end.loss:.4f}."""
    write_report(args, curves, notes)


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "speedrun")
    parser.add_argument("--input", required=True, nargs="+", help="text as for `maskwright prep run`")
    parser.add_argument("--tokenizer", required=True, type=Path, help="a folder with a fast BERT tokenizer")
    parser.add_argument("--documents", type=int, default=4000, help="number of documents of the input")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="slots that the usual recipe trains on")
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3], help="rates for the usual recipe")
    parser.add_argument("--first", type=float, default=0.3, help="length of our first trial, as a share of --tokens")
    parser.add_argument("--tries", type=int, default=3, help="number of trials of our recipe")
    parser.add_argument("--each", action="store_true", help="also the usual recipe with each idea")
    parser.add_argument("--points", type=int, default=10, help="held-out losses of a run")
    parser.add_argument("--rows", type=int, default=256, help="held-out rows")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each run")
    parser.add_argument("--gpu", action="store_true", help="BERT-base on a GPU instead of 4 x 256 on a CPU")
    parser.add_argument("--work", type=Path, default=Path("runs/speedrun"), help="folder for what was run")
    args = parser.parse_args()
    args.work = args.work.absolute()
    return args


def search(bench: Bench, target: float, lr: float, first: int, tries: int) -> dict[int, Curve]:
    """Curves of our recipe by length, for lengths around `first` slots that differ by the factor STEP."""
    curves: dict[int, Curve] = {}
    reached: dict[int, bool] = {}
    while (rung := next_rung(reached, tries)) is not None:
        tokens = round(first * STEP**rung)
        curves[tokens] = maskwright(bench, f"our recipe, {tokens / 1e6:.2f} M tokens", OURS, lr, tokens)
        reached[rung] = curves[tokens].reaches(target) is not None
    return curves


def ends(curves: list[Curve]) -> str:
    return "; ".join(f"{curve.name}: {curve.end.loss:.3f} after {curve.end.seconds:,.0f} s" for curve in curves)


def write_report(args: argparse.Namespace, curves: list[Curve], notes: str) -> None:
    usual, ours = curves[0].end, curves[1]
    size, target = (BASE if args.gpu else SMALL), usual.loss
    reached = ours.reaches(target)
    conclusion = "Our recipe does not reach it."
    if reached:
        conclusion = f"Our recipe reaches it {usual.seconds / reached.seconds:.2f} times as fast, with "
        conclusion += f"{usual.tokens / reached.tokens:.2f} times fewer tokens."
    header = ["", "tokens", "seconds", "times as fast", "held-out loss at the end"]
    ideas = "\n".join(f"- {name}: `{values}`" for name, values in values_of_ideas(size).items())
    page = f"""# Time to a held-out loss

The target is the loss of the usual recipe at the end of its schedule in transformers.Trainer: {target:.3f} nats.
{conclusion}

{table(header, *(row(curve, target, usual) for curve in curves))}

![Held-out loss over seconds and tokens]({args.out.stem}.png)

- Model: BERT, {size.layers} layers x {size.hidden}, without dropout, rows of {SEQ_LEN}; {args.threads} threads, one
  process. Seconds of training, without evaluation and start.
- Held out: {args.rows} rows, 15% of their tokens masked, the same text and masks for all. The model of
  transformers.Trainer reads it with and without [CLS] and [SEP] around each piece, and the lower loss counts.
- The time to a loss is interpolated between {args.points} measured losses; a run may reach it before its schedule ends.
- The usual recipe: AdamW, linear schedule with {WARMUP:.0%} warm-up, batches of {size.batch_size} rows, 15% masked,
  rows concatenated and cut as in run_mlm.py, so that its rows are as full as ours.
- Ours is the usual recipe with {", ".join(OURS)}; "without" one of them, its value is from the usual recipe. Runs
  "without" and "and" are as long as ours; with more steps they might reach the target too.
{notes}

{ideas}
"""
    draw(curves, target, args.out.with_suffix(".png"), "Held-out loss, 15% masked")
    write_page(args.out, page, ("torch", "transformers", "deepspeed"))


if __name__ == "__main__":
    run(main)
