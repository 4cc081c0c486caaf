"""Train a small ModernBERT on books and measure BLiMP and SST-2, against the untrained model and word counts.

    python -m experiments.books --input 'books/*.jsonl.zst' --pairs blimp.jsonl.zst
        --train sst2-train.tsv --valid sst2-dev.tsv

It runs maskwright's commands: a tokenizer, a data set, training with configs/modernbert-mini.yaml, exports of the model
before and after training, held-out text and pairs. Then it fine-tunes the pretrained and random weights. Run the same
command again to resume: results in --work are used again.
"""

import argparse
from pathlib import Path

from experiments import common
from experiments.books_page import MODEL, PRETRAINED, UNTRAINED, page
from experiments.common import ROOT, maskwright, prepare, run, write_page
from experiments.small_models import QUICK, parsed_with_tasks, task_options
from experiments.sst2_finetuning import Init, fine_tune

CONFIG = ROOT / "configs/modernbert-mini.yaml"
_TINY_RATE = "1e-12"  # one step with it keeps the initial weights


def main() -> None:
    args = arguments()
    prepare(args, 0.03 if args.quick else 0.005)
    train(args)
    evaluate(args)
    sides: dict[str, Init] = {PRETRAINED: "pretrained", f"{PRETRAINED}, random weights": "random"}
    tuned = {name: fine_tune(args, name, args.work / MODEL, init) for name, init in sides.items()}
    write_page(args.out, page(args, tuned), ("torch", "deepspeed", "transformers"))


def arguments() -> argparse.Namespace:
    parser = task_options(__doc__, "books")
    parser.add_argument("--steps", type=int, help="of pretraining (default: from the config)")
    parser.set_defaults(
        work=Path("runs/books"),
        examples=None,
        epochs=2,
        lr=[3e-4, 1e-3],
        held_out=2000,
        seeds=3,
        pairs_limit=200,
        procs=2,
    )
    return parsed_with_tasks(parser, steps=4, procs=1)


def train(args: argparse.Namespace) -> None:
    data = ["data.train=data/train", "data.valid=data/valid", "track.uri=sqlite:///mlflow.db"]
    nothing = ["train.steps=1", "schedule.warmup_steps=0", f"optim.lr={_TINY_RATE}", "track.models=none"]
    if args.quick:
        values = QUICK.items()
        data += [f"{section}.{key}={value}" for section, of in values for key, value in of.items() if key != "size"]
        data += [f"model.size.{key}={value}" for key, value in QUICK["model"]["size"].items()]
    steps = [f"train.steps={args.steps}"] if args.steps else []
    for name, changes in ((PRETRAINED, steps), (UNTRAINED, nothing)):
        common.train(args, CONFIG, name, *data, f"run.dir=runs/{name}", *changes)


def evaluate(args: argparse.Namespace) -> None:
    if not (args.work / "evaluation.json").exists():
        text = ["--data", "data/valid", "--unigram", "data/train"]
        pairs = ["--pairs", args.pairs, "--limit", args.pairs_limit]
        models = [f"models/{name}" for name in (PRETRAINED, UNTRAINED)]
        maskwright(args, "evaluate", *models, *text, *pairs, "--json", "evaluation.json")


if __name__ == "__main__":
    run(main)
