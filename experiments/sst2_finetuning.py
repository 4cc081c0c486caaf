"""Fine-tuning on SST-2: every model of an experiment with the same data, seeds and search of the learning rate."""

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.common.files import write_file
from evaluation.finetuning import FinetuneSettings, Finetuning
from evaluation.finetuning.example_files import read_table
from evaluation.finetuning.label_tasks import find_columns
from evaluation.study.paired_statistics import mean_of, paired_differences
from experiments.common import keep_settings, table

Init = Literal["pretrained", "random"]
Row = tuple[str, str]
Text = tuple[str, ...]
QUICK = {"examples": 40, "held_out": 10, "epochs": 1, "seeds": 1}  # values with --quick
_SEED_OF_SEARCH = 1


@dataclass(frozen=True)
class Tuned:
    """Accuracy on the development set by seed, with the learning rate that was best on other sentences."""

    rate: float
    by_seed: dict[int, float]
    baseline: float
    seconds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--train", required=True, type=Path, help="SST-2 as tsv, to fine-tune on")
    parser.add_argument("--valid", required=True, type=Path, help="SST-2 as tsv, to measure on")
    parser.add_argument("--examples", type=int, default=4000, help="of the training file, evenly spaced")
    parser.add_argument("--held-out", type=int, default=1000, help="training sentences held out to choose the rate")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3], help="rates to choose from")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=5)


def keep_search(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments. The split of the search is written once in --work; raises UserError for another --held-out."""
    return keep_settings(args, "held_out") if len(args.lr) > 1 else args


def fine_tune(args: argparse.Namespace, name: str, folder: Path, init: Init = "pretrained") -> Tuned:
    """Choose the rate, if there are several, with one seed on held-out training sentences, then train all seeds.

    Results in --work are used again.
    """
    rate = args.lr[0]
    if len(args.lr) > 1:
        search = write_split(args.train, args.held_out, args.work / "sst2-search")
        trials = {
            rate: _run(args, f"{name}-{rate:g}-search", folder, init, rate, search, [_SEED_OF_SEARCH])
            for rate in args.lr
        }
        rate = max(trials, key=lambda rate: trials[rate].by_seed[_SEED_OF_SEARCH])
    files = {"train": str(args.train), "valid": str(args.valid)}
    return _run(args, f"{name}-{rate:g}", folder, init, rate, files, [*range(1, args.seeds + 1)])


def _run(
    args: argparse.Namespace, name: str, folder: Path, init: Init, rate: float, files: dict[str, str], seeds: list[int]
) -> Tuned:
    settings = FinetuneSettings(
        "classification", args.epochs, rate, dropout=args.dropout, init=init, limit=args.examples
    )
    finetuning = Finetuning(folder, settings, files)
    results = finetuning.open_results(args.work / f"sst2-{name}.json", None)
    for result in finetuning.train_seeds(results, seeds, lambda done, total, line: None):
        accuracy = f"{result.metrics['accuracy']:.4f}"
        print(f"SST-2, {name}, seed {result.seed}: {accuracy}, {result.seconds:.0f} s", flush=True)
    chosen = [result for result in results.results if result.seed in seeds]  # an earlier command may have had more
    by_seed = {result.seed: result.metrics["accuracy"] for result in chosen}
    return Tuned(rate, by_seed, results.baseline["accuracy"], sum(result.seconds for result in chosen))


def accuracy_table(tuned: Mapping[str, Tuned], reference: str) -> str:
    """Mean accuracy of each model, and the reference minus it: one family of differences, paired by seed."""
    others = [name for name in tuned if name != reference]
    minus = paired_differences([(tuned[reference].by_seed, tuned[name].by_seed) for name in others])
    against = {
        name: [f"{100 * one.mean:+.1f}{_between(one.interval)}", _verdict(one.p_adjusted, one.significant)]
        for name, one in zip(others, minus, strict=True)
    }
    rows = []
    for name, one in tuned.items():
        mean = mean_of([*one.by_seed.values()])
        accuracy = f"{100 * mean.mean:.1f}{_between(mean.interval, sign='')}"
        rows.append([name, accuracy, f"{one.rate:g}", f"{one.seconds / len(one.by_seed):.0f}"])
        rows[-1] += against.get(name, ["", ""])
    rows.append(["naive Bayes, or one label", f"{100 * next(iter(tuned.values())).baseline:.1f}", "", "", "", ""])
    header = ["model", "accuracy, %", "learning rate", "seconds a seed", f"{reference} minus this, points", ""]
    return table(header, *rows)


def plot_accuracy(axes: Any, tuned: Mapping[str, Tuned], colour: str) -> None:
    """Draw the mean accuracy of each model with its interval."""
    for place, one in enumerate(tuned.values()):
        mean = mean_of([100 * value for value in one.by_seed.values()])
        axes.plot([place], [mean.mean], "o", color=colour)
        axes.plot([place, place], mean.interval or (mean.mean, mean.mean), color="black", linewidth=1)
    axes.set_xticks(range(len(tuned)), list(tuned), rotation=20, ha="right")
    axes.set_ylabel("SST-2 accuracy, %")


def about(args: argparse.Namespace) -> str:
    """How the models were fine-tuned, for a page about one pretraining of each."""
    return f"""{settings_of(args)} Intervals are Student's t over seeds of
  fine-tuning, and are adjusted by Holm's procedure for differences; they do not cover other pretrainings or other
  sentences"""


def settings_of(args: argparse.Namespace) -> str:
    """Settings of the fine-tuning, as sentences."""
    searched = f"""The learning rate ({", ".join(f"{rate:g}" for rate in args.lr)}) is the best for one seed on
  {args.held_out:,} held-out sentences of the training file."""
    examples = f"{args.examples:,}" if args.examples else "All"
    return f"""{examples} examples of the training file, {args.epochs} epochs, batches of 32, dropout
  {args.dropout:g}, seeds 1 to {args.seeds}, accuracy on the development set after the last epoch.
  {searched if len(args.lr) > 1 else "All have the same learning rate."}"""


def _between(interval: tuple[float, float] | None, sign: str = "+") -> str:
    return f" ({100 * interval[0]:{sign}.1f} to {100 * interval[1]:{sign}.1f})" if interval else ""


def _verdict(p: float, significant: bool) -> str:
    return f"p = {p:.4f}" if significant else "not significant"


def write_split(path: Path, count: int, folder: Path) -> dict[str, str]:
    """Write the parts of `split` of a training file in `folder`, unless they exist. Returns their paths by name."""
    files = {name: folder / f"{name}.tsv" for name in ("train", "valid")}
    if not all(file.exists() for file in files.values()):
        rows = [(row.cells[0], row.cells[1]) for row in read_table(str(path), find_columns(str(path)))]
        folder.mkdir(exist_ok=True)
        for file, part in zip(files.values(), split(rows, count), strict=True):
            write_file(file, "".join(f"{text}\t{label}\n" for text, label in [("sentence", "label"), *part]).encode())
    return {name: str(file) for name, file in files.items()}


def split(rows: Sequence[Row], count: int, seed: int = 0) -> tuple[list[Row], list[Row]]:
    """(training rows, held-out rows) of rows (text, label) of SST-2, whose training file also has phrases of sentences.

    Whole sentences are texts that are part of no other text; `count` of them are held out. The training rows contain no
    part of a held-out sentence.
    """
    texts = {tuple(text.split()) for text, _ in rows}
    inner = {part for text in texts for part in _parts(text) if part != text}
    chosen = set(random.Random(seed).sample(sorted(texts - inner), count))
    parts = {part for text in chosen for part in _parts(text)}
    words = [tuple(text.split()) for text, _ in rows]
    train = [row for row, text in zip(rows, words, strict=True) if text not in parts]
    return train, [row for row, text in zip(rows, words, strict=True) if text in chosen]


def _parts(text: Text) -> Iterator[Text]:
    return (text[first:last] for first in range(len(text)) for last in range(first + 1, len(text) + 1))
