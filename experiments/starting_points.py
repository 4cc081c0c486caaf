"""Starting points for domain text: random weights, a general model, and a general model with a new tokenizer.

    python -m experiments.starting_points --train train.en.txt.zst --valid val.en.txt.zst --general models/general

Each line of the files is a document. The general model is an export, such as a model of `experiments.merges`. All
models train for equal seconds on the training file. Then the pseudo-log-likelihood of the other file is measured, per
byte of its text. The page has the figures; a JSON file next to it has the values of each seed. Run the same command
again to resume: results in --work are used again.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.common.files import write_json
from data_prep.format import Dataset
from evaluation.likelihood.predictors import open_model
from evaluation.likelihood.sentence_scores import sentence_scores
from evaluation.study.paired_statistics import BySeed
from experiments import common, small_models
from experiments.common import (
    held_out_losses,
    make_tokenizer,
    read_text_lines,
    run,
    step_seconds,
    table,
    write_page,
)
from experiments.merges import compared
from experiments.small_models import CONFIG, SEQ_LEN, VALID_FRACTION
from pretrain.export import load_tokenizer

SCRATCH, GENERAL, PIECES = "random weights", "general model", "general model, new tokenizer"
VOCABULARY = {SCRATCH: "domain", GENERAL: "general", PIECES: "domain"}
MEASURE = "bits a byte, by token"
TIMED_STEPS = 60


class Training(NamedTuple):
    start: str
    lr: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.start.replace(', ', '-').replace(' ', '-')}-{self.lr:g}-{self.seed}"


def main() -> None:
    args = arguments()
    prepare(args)
    steps = equal_time_steps(args)
    tries = [Training(start, lr, 1) for start in VOCABULARY for lr in args.lr]
    if not train_missing(args, steps, tries):
        return
    chosen = {start: best_rate(args, start) for start in VOCABULARY}
    others = [Training(start, lr, seed) for seed in range(1, args.seeds + 1) for start, lr in chosen.items()]
    if train_missing(args, steps, others):
        report(args, others)


def arguments() -> argparse.Namespace:
    parser = common.options(__doc__, "starting_points", "starting_points")
    parser.add_argument("--train", required=True, type=Path, help="domain text, a document a line")
    parser.add_argument("--valid", required=True, type=Path, help="domain text to measure on, a document a line")
    parser.add_argument("--general", required=True, type=Path, help="a general model: a Hugging Face folder")
    parser.add_argument("--general-tokens", type=float, default=0, help="tokens it was trained on, for the page")
    parser.add_argument("--vocab-size", type=int, default=8192, help="of the domain tokenizer")
    parser.add_argument("--seconds", type=float, default=90, help="of steps of each training")
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3, 2e-3], help="rates to choose from")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trainings", type=int, help="stop after so many new trainings (default: do all)")
    args = small_models.parsed(parser, "train", "valid", seconds=0.1, seeds=1, lr=[1e-3])
    args.general = args.general.absolute()
    return common.keep_settings(args, "seconds")


def prepare(args: argparse.Namespace) -> None:
    """The domain tokenizer, and the training file as a data set of each tokenizer. 3% are held out to choose rates."""
    text = ["--input", args.train, "--separator", "line"]
    make_tokenizer(args, *text)
    for name, tokenizer in (("domain", "tokenizer"), ("general", args.general)):
        common.prepare(args, VALID_FRACTION, *text, out=name, tokenizer=tokenizer)


def equal_time_steps(args: argparse.Namespace) -> dict[str, int]:
    """Steps that take --seconds from each starting point, by the first quartile of the steps of a short run."""
    file = args.work / "steps.json"
    if not file.exists():
        found = {}
        for start in VOCABULARY:
            timed = Training(start, args.lr[0], 0)
            train(args, timed, 6 if args.quick else TIMED_STEPS)
            seconds = float(np.quantile(step_seconds(args.work / "runs" / timed.name), 0.25))
            found[start] = max(2, round(args.seconds / seconds))
        write_json(file, found)
    steps: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return steps


def train_missing(args: argparse.Namespace, steps: Mapping[str, int], wanted: list[Training]) -> bool:
    """Train, export and measure what is missing, at most --trainings models. Returns whether all are trained."""
    missing = [one for one in wanted if not (args.work / "models" / one.name).exists()]
    now = missing[: args.trainings]
    for one in now:
        train(args, one, steps[one.start])
        measured(args, args.work / "models" / one.name)
    if len(now) < len(missing):
        print("more trainings are to be done: run the same command again")
    return len(now) == len(missing)


def train(args: argparse.Namespace, one: Training, steps: int) -> None:
    data = VOCABULARY[one.start]
    init = {} if one.start == SCRATCH else {"init": str(args.general)}
    pieces = {"init_vocabulary": "pieces"} if one.start == PIECES else {}
    own = {
        "run": {"dir": f"runs/{one.name}", "seed": one.seed},
        "data": {"train": f"{data}/train", "valid": f"{data}/valid", "seq_len": SEQ_LEN},
        "masking": {"rate": 0.3},
        "model": CONFIG["model"] | init | pieces,
        "optim": CONFIG["optim"] | {"lr": one.lr},
        "train": CONFIG["train"] | {"steps": steps},
    }
    small_models.train(args, one.name, own)


def best_rate(args: argparse.Namespace, start: str) -> float:
    """The rate whose first seed has the lowest last loss on held-out lines of the training file."""

    def last_loss(lr: float) -> float:
        return [*held_out_losses(args.work / "runs" / Training(start, lr, 1).name).values()][-1]

    return min(args.lr, key=last_loss)


def measured(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Bits a byte of the held-out file by each form of the score, and its tokens and [UNK]."""
    file = args.work / "scores" / f"{folder.name}.json"
    if not file.exists():
        model, texts = open_model(folder), read_text_lines(args.valid)
        bytes_of_text = sum(len(text.encode()) for text in texts)
        unknown, sentences = load_tokenizer(folder).unk_token_id, model.tokenizer(texts)  # None: it has no such token
        found: dict[str, float] = {"tokens": sum(len(one.ids) for one in sentences)}
        found["unknown"] = sum(int((one.ids == unknown).sum()) for one in sentences)
        found[MEASURE] = -float(sentence_scores(model, texts).sum()) / bytes_of_text / math.log(2)
        file.parent.mkdir(exist_ok=True)
        write_json(file, found)
    read: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return read


def report(args: argparse.Namespace, trainings: list[Training]) -> None:
    values: dict[str, dict[str, BySeed]] = {MEASURE: {}}
    for start in VOCABULARY:
        of_start = [one for one in trainings if one.start == start]
        bits = {one.seed: measured(args, args.work / "models" / one.name)[MEASURE] for one in of_start}
        values[MEASURE][start] = bits
    write_page(args.out, page(args, trainings, values), ("torch", "deepspeed", "transformers"))
    write_json(args.out.with_suffix(".json"), values)


def page(args: argparse.Namespace, trainings: list[Training], values: Mapping[str, Mapping[str, BySeed]]) -> str:
    size, batch, texts = CONFIG["model"]["size"], CONFIG["train"]["global_batch_size"], read_text_lines(args.valid)
    length, untrained = sum(len(text.encode()) for text in texts), measured(args, args.general)
    general = f", trained on {args.general_tokens / 1e6:.2f} M tokens of books" if args.general_tokens else ""
    rows = [[f"{GENERAL}, not trained", "", "", "", f"{untrained[MEASURE]:.4f}"]]
    for start in VOCABULARY:
        rows.append([start, *times(args, trainings, start), mean(values[MEASURE][start])])
    return f"""# Starting points for domain text

ModernBERTs of {size["layers"]} layers x {size["hidden"]} train on {args.train.name} for {args.seconds:.0f} seconds of
steps in {CONFIG["train"]["precision"]} in one thread, {batch} rows of {SEQ_LEN} tokens a step, 30% of them predicted.
There are {args.seeds} seeds of random weights, data order and masks. The general model is the same for all seeds.

- **{SCRATCH}**: with a tokenizer trained on the domain text
  ({tokens(args, "domain")}).
- **{GENERAL}**: `model.init` with its own tokenizer
  ({tokens(args, "general")}).
  It is a ModernBERT of the same size{general}. Its training is not part of the time.
- **{PIECES}**: `model.init` with `model.init_vocabulary: pieces` and the tokenizer of the domain text.

The number of steps is the time divided by the first quartile of the step times in a run of {TIMED_STEPS} steps from
the same start. The table has the seconds of all steps in the journals. {rates(args)}

Bits a byte are the negative pseudo-log-likelihood of the {len(texts):,} lines of {args.valid.name}, divided by their
{length:,} bytes in UTF-8. Each token is predicted from all others, which favours tokenizers with shorter tokens. It is
no likelihood of the text. The table has means over seeds and standard deviations.

{table(["start", "steps", "seconds", "rate", MEASURE], *rows)}

Differences are paired by seed. With three seeds or more, they have intervals of Student's t at the level of Holm's
procedure over the differences of a form. With {args.seeds} seeds of one general model and one domain text, they do not
describe other models or texts.

{differences_of(values)}

Values of each seed: [{args.out.stem}.json]({args.out.stem}.json).
"""


def rates(args: argparse.Namespace) -> str:
    """How the learning rates were chosen, for the page."""
    if len(args.lr) == 1:
        return f"The learning\nrate is {args.lr[0]:g}; no other was tried."
    return f"Each has the best rate of {args.lr}, by the loss of one seed on 3% of the training file, held out."


def mean(of_seeds: BySeed) -> str:
    found = [*of_seeds.values()]
    return f"{np.mean(found):.4f}" + (f" ({np.std(found, ddof=1):.4f})" if len(found) > 1 else "")


def times(args: argparse.Namespace, trainings: list[Training], start: str) -> tuple[str, str, str]:
    """Steps; seconds of the steps of the fastest and the slowest run; and the learning rate."""
    runs = [one for one in trainings if one.start == start]
    seconds = [step_seconds(args.work / "runs" / one.name) for one in runs]
    totals = [sum(of_run) for of_run in seconds]
    return f"{len(seconds[0]):,}", f"{min(totals):.0f} to {max(totals):.0f}", f"{runs[0].lr:g}"


def tokens(args: argparse.Namespace, data: str) -> str:
    """Tokens of the training file, and of the held-out one with the model of a data set."""
    totals = Dataset(args.work / data / "train").manifest.totals
    folder = args.general if data == "general" else next((args.work / "models").glob("random*"))
    held_out = measured(args, folder)
    return f"{totals.tokens / 1e6:.2f} M tokens; held out {held_out['tokens']:,}, {held_out['unknown']:,} of them [UNK]"


def differences_of(values: Mapping[str, Mapping[str, BySeed]]) -> str:
    """A table for each form: the starts from a model minus random weights, and the new tokenizer minus the old one."""
    pairs = [(GENERAL, SCRATCH), (PIECES, SCRATCH), (PIECES, GENERAL)]
    return "\n\n".join(f"### {form.capitalize()}\n\n{compared(of_form, pairs)}" for form, of_form in values.items())


if __name__ == "__main__":
    run(main)
