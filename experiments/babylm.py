"""GPT-BERT on ten million words, as BabyLM's track strict-small: from the choice of the text to a page with BLiMP.

    python -m experiments.babylm --input 'books/*.jsonl.zst' --pairs blimp.jsonl.zst

On a CPU the recipe is reduced: three seeds in two hours and a quarter on two cores. On an H100 it is
configs/babylm-10m.yaml in 8.5 minutes. The text is chosen before, as little is carried there:

    python -m experiments.babylm --input 'books/*.jsonl.zst' --text text --select-only
    python -m experiments.babylm --gpu --text text --pairs blimp.jsonl.zst --out OUT/babylm.md

Stages: the choice of the text, tokenizer, data sets, training of all seeds at the same time, exports of the causal and
the masked view with the averaged and the last weights, BLiMP and held-out loss. The page and a JSON file next to it are
written after each part. Run the same command again to resume: what --work has is used again.
"""

import argparse
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from data_prep.format import Dataset
from experiments import babylm_text, common
from experiments.babylm_page import VIEWS, WEIGHTS, page
from experiments.babylm_text import FILES
from experiments.common import OUT_OF_TIME, ROOT, maskwright, run, write_page
from pretrain.config_files import load_config
from pretrain.run import JournalReader

CONFIG = ROOT / "configs/babylm-10m.yaml"
MOST_WORDS, EPOCHS = {"train": 10_000_000, "valid": 100_000}, 10
PHASES = ("", "phases.middle rows.", "phases.long rows.")


def batches(key: str, *values: int) -> list[str]:
    """Changes of a key in each phase."""
    return [f"{phase}{key}={value}" for phase, value in zip(PHASES, values, strict=True)]


GPU = batches("train.micro_batch_size", 256, 128, 64)  # one pass a step
REDUCED = [  # for two CPU cores
    "model.size={layers: 4, hidden: 192, heads: 3, intermediate: 288}",
    "model.max_positions=256",
    "optim.lr=3e-3",
    *batches("data.seq_len", 64, 128, 256),
    *batches("train.global_batch_size", 64, 32, 16),
    "schedule.warmup_steps=60",
    *("eval.every_steps=250", "eval.rows=256", "checkpoint.every_steps=250"),
]
REDUCED_STEPS = 5000  # 20.5 M tokens for each seed
QUICK = [
    *("model.size={layers: 2, hidden: 16, heads: 2, intermediate: 16}", "train.precision=fp32", "eval.rows=16"),
    *("schedule.warmup_steps=1", "optim.ema=0.5"),
    *batches("train.global_batch_size", 8, 4, 2),
    *batches("train.micro_batch_size", 8, 4, 2),
]
SEEDS_BY_RATE = ((1.3e6, 3), (0.86e6, 2), (0.0, 1))  # tokens a second of all runs, and how many of them may continue
EVALUATION_SECONDS = 90.0  # of --minutes, after training
STOPPED = 75  # exit code of a run that was asked to stop


def main() -> None:
    args = arguments()
    results = Results(args)
    select(args, results)
    if not args.select_only:
        prepare(args, results)
        try:
            train(args, results)
        except UserError:  # the other seeds are evaluated all the same
            evaluate(args, results)
            raise
        evaluate(args, results)


def arguments() -> argparse.Namespace:
    parser = common.options(__doc__, "babylm", "babylm")
    parser.add_argument("--input", help="a file of JSON lines with text, or a quoted glob; not needed with --text")
    parser.add_argument("--text", type=Path, help="folder of the chosen text (default: --work)")
    parser.add_argument("--select-only", action="store_true", help="choose the text, compress it well, and stop")
    parser.add_argument("--pairs", type=Path, help="BLiMP as jsonl")
    parser.add_argument("--gpu", action="store_true", help="the recipe and the timetable of one H100")
    parser.add_argument("--minutes", type=float, help="with --gpu: stop after so long (default 8.5)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=3, help="so many trainings or evaluations at the same time")
    parser.add_argument("--masked-limit", type=int, help="pairs of each set, but all for causal views (50; --gpu: 400)")
    quick = {"words": {"train": 20_000, "valid": 2000}, "vocab_size": 300, "masked_limit": 2, "limit": 2}
    args = common.parsed(parser, **quick, probe_steps=2)
    if not args.quick:
        args.words, args.limit, args.probe_steps = MOST_WORDS, None, 60
        args.vocab_size = 16384 if args.gpu else 8192
        args.masked_limit = args.masked_limit or (400 if args.gpu else 50)
    if args.minutes and not args.gpu:
        raise UserError("--minutes needs --gpu: it stops seeds by the speed of an H100.")
    if not args.select_only and not args.pairs:
        raise UserError("BLiMP is missing. Name a file with --pairs, or add --select-only.")
    args.pairs = args.pairs and common.existing(args.pairs)
    args.text = args.text.absolute() if args.text else args.work
    args.end = psutil.Process().create_time() + 60 * (args.minutes or (8.5 if args.gpu else math.inf))
    return args


class Results:
    """The results so far: results.json in --work, and after each part the page and a JSON file next to it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._lock, self._file = args, threading.Lock(), args.work / "results.json"
        recipe = {"gpu": args.gpu, "quick": args.quick, "seeds": args.seeds, "masked_limit": args.masked_limit}
        self.values: dict[str, Any] = {"recipe": recipe}
        if self._file.exists():
            self.values = json.loads(self._file.read_text(encoding="utf-8"))
            if self.values["recipe"] != recipe:
                raise UserError(
                    f"{args.work} has results of {self.values['recipe']}, not {recipe}. Name another --work."
                )

    def of(self, part: str) -> dict[str, Any]:
        """The values of a part."""
        return dict(self.values.get(part, {}))

    def add(self, part: str, name: str, value: Any) -> None:
        """Record a value of a part, and write the files."""
        with self._lock:
            self.values.setdefault(part, {})[name] = value
            self._args.out.parent.mkdir(parents=True, exist_ok=True)
            for file in (self._file, self._args.out.with_suffix(".json")):
                write_json(file, self.values)
            write_page(self._args.out, page(self.values), ("torch", "transformers"), shown=False)


def select(args: argparse.Namespace, results: Results) -> None:
    """Choose the text, unless --text has it."""
    if not all((args.text / name).exists() for name in FILES.values()):
        if not args.input:
            raise UserError(f"{args.text} has no {' and '.join(FILES.values())}. Choose them with --input.")
        args.text.mkdir(parents=True, exist_ok=True)
        babylm_text.select(args.input, args.text, args.words, seed=0, level=19 if args.select_only else 3)
    for part, counts in babylm_text.count(args.text).items():
        print(f"{args.text / FILES[part]}: {counts['documents']:,} documents, {counts['words']:,} words")
        if counts["words"] > args.words[part]:
            raise UserError(
                f"{args.text / FILES[part]} has more than {args.words[part]:,} words. Choose the text again."
            )
        if not args.select_only:
            results.add("text", part, counts)


def prepare(args: argparse.Namespace, results: Results) -> None:
    """Tokenizer and data sets."""
    common.make_tokenizer(args, "--input", args.text / FILES["train"])
    for part, name in FILES.items():
        if not (args.work / "data" / part / "manifest.json").exists():
            words = ("--input", args.text / name, "--tokenizer", "tokenizer", "--out", f"data/{part}")
            maskwright(args, "prep", "run", *words)
        results.add("tokens", part, Dataset(args.work / "data" / part).manifest.totals.tokens)


def changes_of(args: argparse.Namespace, seed: int, tokens: int) -> list[str]:
    """Changes of CONFIG for a run. tokens: of the training text, which is read at most EPOCHS times."""
    changes = ["data.train=data/train", "data.valid=data/valid", "track.uri=none", f"run.dir=runs/{seed}"]
    changes += [f"run.seed={seed}", *(GPU if args.gpu else REDUCED), *(QUICK if args.quick else [])]
    config = load_config(CONFIG, changes)
    of_recipe = {phase.name: phase.steps for phase in config.phases}
    whole = sum(of_recipe.values())
    most = 6 if args.quick else whole if args.gpu else REDUCED_STEPS
    steps = min(EPOCHS * tokens // (config.train.global_batch_size * config.data.seq_len), most)
    return changes + [f"phases.{name}.steps={max(1, steps * n // whole)}" for name, n in of_recipe.items()]


def train(args: argparse.Namespace, results: Results) -> None:
    """Train all seeds at the same time, but none that a probe has stopped. With --minutes, `watch` may stop runs."""
    over = threading.Event()
    threading.Thread(target=watch, args=(args, results, over), daemon=True).start()
    try:
        for_each(args, range(results.of("probe").get("seeds", args.seeds)), lambda seed: train_one(args, results, seed))
    finally:
        over.set()


def train_one(args: argparse.Namespace, results: Results, seed: int) -> None:
    changes = changes_of(args, seed, results.of("tokens")["train"])
    if results.of("runs").get(str(seed), {}).get("complete"):
        return
    code = maskwright(args, "train", CONFIG, *changes, "--procs", args.procs, also=(STOPPED,))
    folder = args.work / f"runs/{seed}"
    (host,) = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["hosts"]
    machine = (
        ", ".join(gpu["name"] for gpu in host.get("gpus", [])) or f"{host['threads']} threads of {host['processor']}"
    )
    entries = [entry.metrics for entry in JournalReader(folder / "journal.jsonl").entries()]
    steps = [entry for entry in entries if "speed/step_seconds" in entry]
    tokens = sum(step["speed/tokens_per_second"] * step["speed/step_seconds"] for step in steps)
    config, minutes = load_config(CONFIG, changes), sum(step["speed/step_seconds"] for step in steps) / 60
    value = {"model": config.model.title, "of": config.train.steps, "complete": not code, "changes": changes}
    value |= {"machine": machine, "steps": len(steps), "tokens": tokens, "minutes": minutes}
    evaluated = [entry for entry in entries if "eval/loss" in entry][-1:]
    results.add(
        "runs", str(seed), value | {name: entry[f"eval/{name}"] for entry in evaluated for name in ("loss", "ema_loss")}
    )


def for_each(args: argparse.Namespace, items: Iterable[Any], function: Callable[[Any], None]) -> None:
    """Call `function` for each item, --at-once at the same time. Raise the first UserError after all have ended."""

    def error_of(item: Any) -> UserError | None:
        try:
            function(item)
        except UserError as error:
            return error
        return None

    with ThreadPoolExecutor(args.at_once) as pool:
        errors = [error for error in pool.map(error_of, items) if error]
    if errors:
        raise errors[0]


def watch(args: argparse.Namespace, results: Results, over: threading.Event) -> None:
    """Stop runs: after the probe those that are too many for the rate, and all before the time of evaluation."""
    folders = [args.work / f"runs/{seed}" for seed in range(args.seeds)]
    while args.end < math.inf and not over.wait(0.5):
        if args.end - time.time() < EVALUATION_SECONDS:
            stop(folders)
            return
        if "seeds" not in results.of("probe") and (rate := probed_rate(folders, args.probe_steps)):
            seeds = min(args.seeds, next(seeds for least, seeds in SEEDS_BY_RATE if rate >= least))
            results.add("probe", "tokens_per_second", rate)
            results.add("probe", "seeds", seeds)
            stop(folders[seeds:])


def stop(folders: Sequence[Path]) -> None:
    """Ask runs to write a checkpoint and stop."""
    for folder in filter(Path.is_dir, folders):
        (folder / "STOP").write_text("the time is over\n")


def probed_rate(folders: Sequence[Path], steps: int) -> float | None:
    """Tokens a second of all runs together; None before all have made so many steps. Of each the last 40 count."""
    rates = []
    for folder in folders:
        entries = [entry.metrics for entry in JournalReader(folder / "journal.jsonl").latest()]
        speeds = [metrics["speed/tokens_per_second"] for metrics in entries if "speed/tokens_per_second" in metrics]
        if len(speeds) < steps:
            return None
        rates.append(median(speeds[-40:]))
    return sum(rates)


def evaluate(args: argparse.Namespace, results: Results) -> None:
    """Measure all models, the averaged weights first and their causal view before the masked one, then the unigram."""
    kept = results.of("probe").get("seeds", args.seeds)
    runs = results.of("runs").items()
    seeds = sorted(seed for seed, of_run in runs if of_run["complete"] or (int(seed) < kept and of_run["steps"]))
    names = [f"{seed} {view} {weights}" for weights in WEIGHTS for view in VIEWS for seed in seeds]
    for_each(args, [*names, "unigram"], lambda name: evaluate_one(args, results, name))


def evaluate_one(args: argparse.Namespace, results: Results, name: str) -> None:
    """Record BLiMP and held-out loss of a model, SEED VIEW WEIGHTS, unless they are known or the time is over."""
    if name in results.of("evaluation"):
        return
    model, file = f"models/{name.replace(' ', '-')}", args.work / f"{name.replace(' ', '-')}.json"
    words = [model, "--data", "data/valid", "--pairs", args.pairs, "--json", file]
    if name == "unigram":
        words[0:1] = ["--unigram", "data/train"]
    elif not (args.work / model).exists():
        seed, view, weights = name.split()
        options = ["--view", "bidirectional" if view == "masked" else view, *["--ema"] * (weights == "averaged")]
        in_time(args, "export", f"runs/{seed}", *options, "--out", model)
    if limit := args.limit if name.endswith(("causal averaged", "unigram")) else args.masked_limit:
        words += ["--limit", limit]
    if in_time(args, "evaluate", *words):
        (value,) = json.loads(file.read_text(encoding="utf-8"))["models"].values()
        results.add("evaluation", name, value)


def in_time(args: argparse.Namespace, *words: Any) -> bool:
    """Run a command unless the time is over, and end it then. Returns whether it is done."""
    left = min(args.end - time.time(), threading.TIMEOUT_MAX)
    return left > 0 and not maskwright(args, *words, seconds=left, also=(OUT_OF_TIME,))


if __name__ == "__main__":
    run(main)
