"""An encoder speedrun: time to the held-out loss of the usual recipe in `transformers.Trainer`, on two CPU cores.

    python -m benchmarks.speedrun --input books.jsonl.zst --ideas
    python -m benchmarks.speedrun --input configs/demo/books.jsonl.zst --quick

1. Search: Maskwright trains the usual recipe (AdamW, linear schedule) with at most ten settings of form, batch, mask
   rate and learning rate, by a fixed rule. This takes less time than with the Trainer.
2. transformers.Trainer trains the best one for --minutes, with three seeds. The mean of its bits per byte of held-out
   words is the target. Maskwright trains the same recipe for as many steps, and its own recipe. All take turns.
3. If a seed of our recipe misses the target, all are trained again, longer by a quarter.
4. With --ideas, the usual recipe is also trained with each idea, and ours with each other idea and without each of its
   own, for --search-tokens. `--ideas Muon "whole words"` takes these two ideas only.

Runs are separate processes, one after the other, with the same threads, documents and held-out words. The time of
measurements and of starts does not count. Results in --work are used again, so an interrupted speedrun continues; an
interrupted run starts again. A JSON file next to the page lists the results after each run. The page shows each idea
as soon as it has run.
"""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness import options, run, warn_if_busy, write_page
from benchmarks.speedrun_page import Comparison, page
from benchmarks.speedrun_recipes import IDEAS, OURS, SEQ_LEN, Setting, best_of, search, values_of
from benchmarks.speedrun_runs import Bench, Result
from data_prep.common.errors import UserError
from pretrain.engine import slow_precision

WORK, QUICK_WORK = Path("runs/speedrun"), Path("runs/speedrun-quick")
LONGER = 1.25
SHARES = (0.7, 0.8, 0.9, 1.0)  # of a run of ours, after which it is measured
QUICK = {"documents": 60, "minutes": 0.002, "search_tokens": 8192, "search_runs": 4, "seeds": 2, "passages": 16}


def main() -> None:
    args = arguments()
    warn_if_busy()
    if find_spec("accelerate") is None:
        raise UserError("transformers.Trainer needs accelerate: pip install 'maskwright[benchmark]'")
    precision = "fp32" if slow_precision("bf16", "cpu") else "bf16"
    size, vocabulary = {"layers": 4, "hidden": 192, "heads": 3}, 8192
    if args.quick:
        size, vocabulary = {"layers": 1, "hidden": 32, "heads": 2}, 2000
    bench = Bench(args.work, args.out.with_suffix(".json"), size, vocabulary, args.threads, precision)
    bench.prepare(args.input, args.documents, args.passages)
    comparison = compare(bench, args)
    report(args, comparison)
    for seed in range(0 if args.ideas is None else 1 if args.quick else args.seeds):
        for (recipe, change), values in arms(comparison.usual, args).items():
            result = bench.maskwright(f"{recipe} {change}".strip(), values, seed)
            comparison.arms.setdefault((recipe, change), {})[seed] = result
            report(args, comparison)
    print(f"wrote {args.out}")


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "speedrun")
    parser.add_argument("--input", required=True, nargs="+", help="text as for `maskwright prep run`")
    parser.add_argument("--documents", type=int, default=8600, help="number of documents of the input")
    parser.add_argument("--minutes", type=float, default=20, help="training time of a run of transformers.Trainer")
    parser.add_argument("--search-tokens", type=int, default=1_200_000, help="slots of a run of the search or an idea")
    parser.add_argument("--search-runs", type=int, default=10, help="runs of the search, at most")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each side")
    parser.add_argument("--share", type=float, default=0.38, help="our first length, as a share of the usual slots")
    parser.add_argument("--tries", type=int, default=3, help="lengths of our recipe, at most")
    parser.add_argument("--ideas", nargs="*", choices=[*IDEAS], metavar="IDEA", help="also try these ideas, or all")
    parser.add_argument("--passages", type=int, default=1024, help="held-out passages, at most")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each run")
    parser.add_argument(
        "--work", type=Path, help=f"folder for what was run (default {WORK}; with --quick {QUICK_WORK})"
    )
    quick = "tiny models, only to see that the script works; the page is then in --work by default"
    parser.add_argument("--quick", action="store_true", help=quick)
    args = parser.parse_args()
    args.work = args.work or (QUICK_WORK if args.quick else WORK)
    if args.quick and args.out == parser.get_default("out"):  # tiny models never replace the published page
        args.out = args.work / args.out.name
    for name, value in {**QUICK, "tries": 1, "threads": 1}.items() if args.quick else ():
        setattr(args, name, value)
    args.work, args.out = args.work.absolute(), args.out.absolute()
    return args


def compare(bench: Bench, args: argparse.Namespace) -> Comparison:
    """Search, then all sides in turns, then longer runs of ours until each seed reaches the target."""
    searched: dict[Setting, Result] = {}

    def measure(setting: Setting) -> float:
        values = values_of([], setting, args.search_tokens)
        searched[setting] = bench.maskwright(f"search, {setting}", values, 0)
        return searched[setting].end.bits

    usual = best_of(search(measure, args.search_runs))
    model = Path(searched[usual].model)
    steps = bench.trainer_steps(usual, model, args.minutes)
    tokens, share = steps * usual.batch * SEQ_LEN, args.share
    results = Comparison(bench, bench.unigram(), usual, searched)
    for seed in range(args.seeds):
        for side in ("trainer", "engine", "ours")[:: 1 if seed % 2 == 0 else -1]:
            if side == "trainer":
                results.trainer[seed] = bench.trainer(usual, model, seed, steps)
            elif side == "engine":
                results.engine[seed] = bench.maskwright("usual recipe", values_of([], usual, tokens), seed)
            else:
                results.ours[seed] = ours(bench, usual, round(share * tokens), seed)
    for _ in range(1, args.tries):
        if not results.reached:
            share *= LONGER
            results.ours = {seed: ours(bench, usual, round(share * tokens), seed) for seed in results.ours}
    return results


def ours(bench: Bench, usual: Setting, tokens: int, seed: int) -> Result:
    return bench.maskwright("our recipe", values_of(OURS, usual, tokens), seed, SHARES)


def arms(usual: Setting, args: argparse.Namespace) -> dict[tuple[str, str], dict[str, object]]:
    """Config values of each idea added alone and removed alone, by recipe and change, where it changes something."""
    chosen: dict[tuple[str, str], list[str]] = {}
    for recipe, own in {"usual": (), "ours": OURS}.items():
        chosen[recipe, ""] = [*own]
        for idea in args.ideas or IDEAS:
            if idea in own:
                chosen[recipe, f"without {idea}"] = [other for other in own if other != idea]
            else:
                chosen[recipe, f"with {idea}"] = [*own, idea]
    values = {arm: values_of(ideas, usual, args.search_tokens) for arm, ideas in chosen.items()}
    kept = {arm: config for arm, config in values.items() if not arm[1] or config != values[arm[0], ""]}
    return dict([*kept.items()][:2]) if args.quick else kept


def report(args: argparse.Namespace, comparison: Comparison) -> None:
    write_page(args.out, page(comparison), ("torch", "transformers", "deepspeed"), shown=False)


if __name__ == "__main__":
    run(main)
