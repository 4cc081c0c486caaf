"""Does it learn? A small ModernBERT from books to BLiMP and SST-2, beside itself untrained and what counts words.

    python benchmarks/books.py --input 'books/*.jsonl.zst' --pairs blimp.jsonl.zst
        --train sst2-train.tsv --valid sst2-dev.tsv

By maskwright's own commands: a tokenizer, a data set, training by configs/modernbert-mini.yaml, the export of its end
and of the same model before its first step, held-out text and pairs, and fine-tuning of the pretrained and of random
weights. Each of them goes on where it was stopped, and so does the whole: what is in --work is not made again.
"""

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.answers import right_answers
from benchmarks.books_page import PARTS, PRETRAINED, SIDES, UNTRAINED, page
from benchmarks.held_out_sentences import split
from benchmarks.machine import conditions, warn_if_busy
from benchmarks.train_vs_hf import side_environment
from data_prep.errors import UserError
from data_prep.files import atomic_writer, write_json
from evaluation.finetuning.classification import find_columns
from evaluation.finetuning.example_files import read_table

CONFIG = ROOT / "configs/modernbert-mini.yaml"
_RATE_OF_NOTHING = "1e-12"  # one step of it leaves the initial weights


def main() -> None:
    args = arguments()
    load = warn_if_busy()
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args)
    train(args)
    hold_out(args)
    with ThreadPoolExecutor(args.procs) as pool:  # of processes with a thread each
        jobs = [pool.submit(finetune, args, init) for init in SIDES]
        jobs.append(pool.submit(evaluate, args))
        for job in jobs:
            job.result()
    answer(args)
    write_report(args, load)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, type=Path, help="a file of text, or a quoted glob")
    parser.add_argument("--pairs", required=True, type=Path, help="BLiMP's jsonl")
    parser.add_argument("--pairs-limit", type=int, default=200, help="pairs of each of its sets")
    parser.add_argument("--train", required=True, type=Path, help="SST-2's tsv, to fine-tune on")
    parser.add_argument("--valid", required=True, type=Path, help="SST-2's tsv, to measure on")
    parser.add_argument("--seeds", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--epochs", type=int, default=2, help="of fine-tuning")
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-4, 1e-3], help="rates of fine-tuning to choose from")
    parser.add_argument("--held-out", type=int, default=2000, help="sentences of the training file to choose them by")
    parser.add_argument("--dropout", type=float, default=0.1, help="of fine-tuning")
    parser.add_argument("--steps", type=int, help="of pretraining; those of the config unless given")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--procs", type=int, default=2, help="processes of a thread each")
    parser.add_argument("--work", type=Path, default=Path("runs/books"), help="folder for what was made")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/books.md")
    args = parser.parse_args()
    for name in ("input", "pairs", "train", "valid", "work"):  # commands run in --work
        setattr(args, name, getattr(args, name).absolute())
    for path in (args.pairs, args.train, args.valid):  # which are read an hour later
        if not path.is_file():
            raise UserError(f"there is no file {path}")
    return args


def prepare(args: argparse.Namespace) -> None:
    text = ["--input", str(args.input)]
    if not (args.work / "tokenizer").exists():
        maskwright(args, "tokenizer", "train", *text, "--vocab-size", str(args.vocab_size), "--out", "tokenizer")
    if not (args.work / "data/valid/manifest.json").exists():
        maskwright(args, "prep", "run", *text, "--tokenizer", "tokenizer", "--out", "data", "--valid-fraction", "0.005")


def train(args: argparse.Namespace) -> None:
    data = ["data.train=data/train", "data.valid=data/valid", "track.uri=sqlite:///mlflow.db"]
    nothing = ["train.steps=1", "schedule.warmup_steps=0", f"optim.lr={_RATE_OF_NOTHING}", "track.models=none"]
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
    """With the rate that serves this side best on the first part of the sentences: on all parts, and with all seeds."""
    trials = {rate: f"{PARTS[0]}/{init}-{rate:g}.json" for rate in args.lr}
    for rate, trial in trials.items():
        tune(args, init, rate, *_files(PARTS[0]), "--seeds", "1", "--json", trial)
    best = max(trials, key=lambda rate: said(args, trials[rate]))
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


def said(args: argparse.Namespace, report: str) -> float:
    """The accuracy in it."""
    return float(json.loads((args.work / report).read_text(encoding="utf-8"))["mean"])


def hold_out(args: argparse.Namespace) -> None:
    """The whole sentences of the training file in parts: to choose rates by the first, and to measure on all."""
    if all((args.work / part / "valid.tsv").exists() for part in PARTS):
        return
    rows = [(row.cells[0], row.cells[1]) for row in read_table(str(args.train), find_columns(str(args.train)))]
    for part, tables in zip(PARTS, split(rows, args.held_out, len(PARTS) - 1), strict=True):
        (args.work / part).mkdir(exist_ok=True)
        for name, table in zip(("train", "valid"), tables, strict=True):
            with atomic_writer(args.work / part / f"{name}.tsv") as file:
                file.write("".join(f"{text}\t{label}\n" for text, label in [("sentence", "label"), *table]).encode())


def answer(args: argparse.Namespace) -> None:
    """Which sentences each side gets right: as many as it said when it was fine-tuned."""
    for part in PARTS:
        found = right_answers(args.work / part, SIDES)
        for side in SIDES:
            share, wanted = found[side].mean(), said(args, f"{part}/{side}.json")
            if abs(share - wanted) > 0.001:  # padding rounds otherwise
                raise UserError(f"{part}/{side} gets {share:.4f} right, and its report says {wanted:.4f}")
        write_json(args.work / part / "right.json", {side: right.tolist() for side, right in found.items()})


def maskwright(args: argparse.Namespace, *words: str) -> None:
    """A command of this checkout in --work, on a thread a process; what it says is seen."""
    command = [sys.executable, "-m", "launchers.cli", *words]
    print(f"maskwright {' '.join(words)}", flush=True)
    done = subprocess.run(command, cwd=args.work, env=side_environment(args.work, threads=1))
    if done.returncode:
        raise UserError(f"maskwright {words[0]} ended with exit code {done.returncode}; the same command goes on")


def write_report(args: argparse.Namespace, load: float) -> None:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    picture = args.out.with_suffix(".png")
    shutil.copyfile(args.work / "runs/pretrained/curve.png", picture)
    text = page(args.work, picture.name)
    with atomic_writer(args.out) as file:
        file.write(f"{text}\n{conditions('books.py', ('torch', 'deepspeed', 'transformers'), load)}".encode())


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
