"""Train a small ModernBERT on books and measure BLiMP and SST-2, against the untrained model and word counts.

    python -m experiments.books --input 'books/*.jsonl.zst' --pairs blimp.jsonl.zst
        --train sst2-train.tsv --valid sst2-dev.tsv

It runs maskwright's commands: a tokenizer, a data set, training with configs/modernbert-mini.yaml, exports of the model
before and after training, held-out text and pairs, and fine-tuning of the pretrained and of random weights. Run the
same command again to resume: results in --work are used again.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import ROOT, existing, options, run, warn_if_busy, write_page
from benchmarks.train_vs_hf import side_environment
from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from experiments.books_page import PARTS, PRETRAINED, SIDES, UNTRAINED, page
from experiments.sst2_sentences import correct_labels, write_parts

CONFIG = ROOT / "configs/modernbert-mini.yaml"
_TINY_RATE = "1e-12"  # one step with it keeps the initial weights


def main() -> None:
    args = arguments()
    warn_if_busy()
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args)
    train(args)
    # Whole sentences of the training file: the first part chooses rates, all measure.
    write_parts(args.train, args.held_out, [args.work / part for part in PARTS])
    with ThreadPoolExecutor(args.procs) as pool:  # each runs processes of one thread
        jobs = [pool.submit(finetune, args, init) for init in SIDES]
        jobs.append(pool.submit(evaluate, args))
        for job in jobs:
            job.result()
    answer(args)
    write_page(args.out, page(args.work), ("torch", "deepspeed", "transformers"))


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "books", "experiments")
    parser.add_argument("--input", required=True, type=Path, help="a file of text, or a quoted glob")
    parser.add_argument("--pairs", required=True, type=Path, help="BLiMP as jsonl")
    parser.add_argument("--pairs-limit", type=int, default=200, help="pairs of each of its sets")
    parser.add_argument("--train", required=True, type=Path, help="SST-2 as tsv, to fine-tune on")
    parser.add_argument("--valid", required=True, type=Path, help="SST-2 as tsv, to measure on")
    parser.add_argument("--seeds", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--epochs", type=int, default=2, help="of fine-tuning")
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-4, 1e-3], help="rates of fine-tuning to choose from")
    parser.add_argument("--held-out", type=int, default=2000, help="sentences held out to choose the rate")
    parser.add_argument("--dropout", type=float, default=0.1, help="of fine-tuning")
    parser.add_argument("--steps", type=int, help="of pretraining (default: from the config)")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--procs", type=int, default=2, help="processes of one thread")
    parser.add_argument("--work", type=Path, default=Path("runs/books"), help="folder of data, runs and models")
    args = parser.parse_args()
    args.input, args.work = args.input.absolute(), args.work.absolute()  # commands run in --work
    args.pairs, args.train, args.valid = map(existing, (args.pairs, args.train, args.valid))
    return args


def prepare(args: argparse.Namespace, valid_fraction: str = "0.005") -> None:
    text = ["--input", str(args.input)]
    if not (args.work / "tokenizer").exists():
        maskwright(args, "tokenizer", "train", *text, "--vocab-size", str(args.vocab_size), "--out", "tokenizer")
    if not (args.work / "data/valid/manifest.json").exists():
        data = ["--out", "data", "--valid-fraction", valid_fraction]
        maskwright(args, "prep", "run", *text, "--tokenizer", "tokenizer", *data)


def train(args: argparse.Namespace) -> None:
    data = ["data.train=data/train", "data.valid=data/valid", "track.uri=sqlite:///mlflow.db"]
    nothing = ["train.steps=1", "schedule.warmup_steps=0", f"optim.lr={_TINY_RATE}", "track.models=none"]
    steps = [f"train.steps={args.steps}"] if args.steps else []
    for name, changes in (("pretrained", steps), ("untrained", nothing)):
        if not (args.work / "models" / name).exists():
            run = f"run.dir=runs/{name}"
            maskwright(args, "train", str(CONFIG), *data, run, *changes, "--procs", str(args.procs))
            maskwright(args, "export", f"runs/{name}", "--out", f"models/{name}")


def evaluate(args: argparse.Namespace) -> None:
    if not (args.work / "evaluation.json").exists():
        text = ["--data", "data/valid", "--counts", "data/train", "--baseline", "unigram"]
        pairs = ["--pairs", str(args.pairs), "--limit", str(args.pairs_limit)]
        maskwright(args, "evaluate", PRETRAINED, UNTRAINED, *text, *pairs, "--json", "evaluation.json")


def finetune(args: argparse.Namespace, init: str) -> None:
    """Choose the best rate on the first part of the sentences, then fine-tune on all parts and with all seeds."""
    trials = {rate: f"{PARTS[0]}/{init}-{rate:g}.json" for rate in args.lr}
    for rate, trial in trials.items():
        tune(args, init, rate, *_files(PARTS[0]), "--seeds", "1", "--json", trial)
    best = max(trials, key=lambda rate: accuracy(args, trials[rate]))
    for part in PARTS:
        kept = ("--json", f"{part}/{init}.json", "--out", f"{part}/{init}")
        tune(args, init, best, *_files(part), "--seeds", "1", *kept)
    files = ["--train", str(args.train), "--valid", str(args.valid)]
    tune(args, init, best, *files, "--seeds", str(args.seeds), "--json", f"sst2-{init}.json")


def tune(args: argparse.Namespace, init: str, rate: float, *words: str) -> None:
    settings = ["--init", init, "--lr", str(rate), "--epochs", str(args.epochs), "--dropout", str(args.dropout)]
    maskwright(args, "finetune", PRETRAINED, "--task", "classification", *settings, *words)


def _files(part: str) -> tuple[str, ...]:
    return "--train", f"{part}/train.tsv", "--valid", f"{part}/valid.tsv"


def accuracy(args: argparse.Namespace, report: str) -> float:
    return float(json.loads((args.work / report).read_text(encoding="utf-8"))["mean"])


def answer(args: argparse.Namespace) -> None:
    """Store which sentences each side labels correctly, and compare their share with the fine-tuning report."""
    for part in PARTS:
        correct = correct_labels(args.work / part, SIDES)
        for side in SIDES:
            share, expected = correct[side].mean(), accuracy(args, f"{part}/{side}.json")
            if abs(share - expected) > 0.001:  # other padding rounds differently
                raise UserError(f"{part}/{side} labels {share:.4f} correctly, but its report has {expected:.4f}")
        write_json(args.work / part / "right.json", {side: right.tolist() for side, right in correct.items()})


def maskwright(args: argparse.Namespace, *words: str, module: str = "launchers.cli") -> None:
    """Run a command, or another module of this checkout, in --work, one thread per process; show its output."""
    command = [sys.executable, "-m", module, *words]
    print(module, *words, flush=True)
    done = subprocess.run(command, cwd=args.work, env=side_environment(args.work, threads=1))
    if done.returncode:
        raise UserError(f"{module} {words[0]} ended with exit code {done.returncode}; run the command again to resume")


if __name__ == "__main__":
    run(main)
