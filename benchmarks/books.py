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

from benchmarks.answers import right_answers  # noqa: E402
from benchmarks.books_page import FOLDS, HELD_OUT, PRETRAINED, SIDES, UNTRAINED, page  # noqa: E402
from benchmarks.held_out_sentences import split  # noqa: E402
from benchmarks.machine import conditions, warn_if_busy  # noqa: E402
from benchmarks.train_vs_hf import side_environment  # noqa: E402
from data_prep.errors import UserError  # noqa: E402
from data_prep.files import atomic_writer, write_json  # noqa: E402
from pretrain.finetuning.classification import find_columns  # noqa: E402
from pretrain.finetuning.files import read_table  # noqa: E402

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
    parser.add_argument("--epochs", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-4, 6e-4], help="rates of fine-tuning to choose from")
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
    """With the rate that serves this side best on sentences of its own: on those of the folds, and with all seeds."""
    trials = {rate: f"{HELD_OUT}/{init}-{rate:g}.json" for rate in args.lr}
    for rate, trial in trials.items():
        tune(args, init, rate, *_files(HELD_OUT), "--seeds", "1", "--json", trial)
    scores = {rate: json.loads((args.work / trial).read_text())["mean"] for rate, trial in trials.items()}
    best = max(scores, key=lambda rate: scores[rate])
    for fold in FOLDS:
        kept = ("--json", f"{fold}/{init}.json", "--out", f"{fold}/{init}")
        tune(args, init, best, *_files(fold), "--seeds", "1", *kept)
    files = ["--train", str(args.train), "--valid", str(args.valid)]
    tune(args, init, best, *files, "--seeds", str(args.seeds), "--json", f"sst2-{init}.json")


def tune(args: argparse.Namespace, init: str, rate: float, *words: str) -> None:
    settings = ["--init", init, "--lr", str(rate), "--epochs", str(args.epochs), "--dropout", str(args.dropout)]
    maskwright(args, "finetune", PRETRAINED, "--task", "classification", *settings, *words)


def _files(folder: str) -> tuple[str, ...]:
    return "--train", f"{folder}/train.tsv", "--valid", f"{folder}/valid.tsv"


def hold_out(args: argparse.Namespace) -> None:
    """Parts of the training file: some sentences to choose rates by, the others in folds to measure on."""
    folders = (HELD_OUT, *FOLDS)
    if all((args.work / folder / "valid.tsv").exists() for folder in folders):
        return
    rows = [(row.cells[0], row.cells[1]) for row in read_table(str(args.train), find_columns(str(args.train)))]
    for folder, parts in zip(folders, split(rows, args.held_out, len(FOLDS)), strict=True):
        (args.work / folder).mkdir(exist_ok=True)
        for name, part in zip(("train", "valid"), parts, strict=True):
            with atomic_writer(args.work / folder / f"{name}.tsv") as file:
                file.write("".join(f"{text}\t{label}\n" for text, label in [("sentence", "label"), *part]).encode())


def answer(args: argparse.Namespace) -> None:
    """Which sentences of the folds each side gets right: as often as it said when it was fine-tuned."""
    for fold in FOLDS:
        found = right_answers(args.work / fold, SIDES)
        for side in SIDES:
            said = json.loads((args.work / fold / f"{side}.json").read_text())["mean"]
            if abs(found[side].mean() - said) > 0.001:  # padding rounds otherwise
                raise UserError(f"{fold}/{side} gets {found[side].mean():.4f} right, and its report says {said:.4f}")
        write_json(args.work / fold / "right.json", {side: right.tolist() for side, right in found.items()})


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
