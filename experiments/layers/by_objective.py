"""Layers of models of the same text that differ only in the objective, and of other models.

    python -m experiments.layers.by_objective --input 'books/*.jsonl.zst'
    python -m experiments.layers.by_objective --input train.en.txt.zst --target train.de.txt.zst
        --out layers_translation.md

It runs maskwright's commands: a tokenizer, a data set, trainings, their exports; then `experiments.layers`. The models
are masked and causal. With --target, a third one translates the lines of --input. Run the same command again to resume.
With the --work of word_order.py it uses that text and its masked model, and can also analyze its other models: --also
models/1-grams.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scipy.special import stdtr

from data_prep.common.errors import UserError
from data_prep.common.intervals import ALPHA
from evaluation.study.paired_statistics import holm
from experiments import small_models
from experiments.common import make_tokenizer, maskwright, prepare, run, table, write_page
from experiments.layers.measures import GROUPS, JACKKNIFE_T
from experiments.shuffled_text import prepare_shuffled
from experiments.small_models import CONFIG, NATURAL, SEQ_LEN, VALID_FRACTION, options, parsed, train_all
from experiments.word_order import losses

TRANSLATION = "translation"
TITLES = {NATURAL: "masked", "clm": "causal", TRANSLATION: "prefix"}
PAIRS = {"train": "pairs/train", "valid": "pairs/valid"}
OBJECTIVES: dict[str, dict[str, Any]] = {
    NATURAL: {},
    "clm": {"objective": "clm", "masking": None},
    TRANSLATION: {"objective": "prefix", "masking": None, "data": CONFIG["data"] | PAIRS},
}


def main() -> None:
    args = arguments()
    if args.target:
        prepare_pairs(args)
    train_all(args, {name: OBJECTIVES[name] for name in args.train})
    models = [f"models/{name}" for name in args.train] + args.also
    text = ["--data", args.data, "--seq-len", SEQ_LEN]
    if args.shuffled:
        text += ["--shuffled", prepare_shuffled(args, args.data, 1, f"analyzed-{args.data.replace('/', '-')}")]
    text += ["--positions", 300, "--tokens", 4, "--clusters", 8] if args.quick else []
    maskwright(args, *models, *text, "--out", "layers", "--json", "layers.json", module="experiments.layers")
    report(args)


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "layers")
    parser.add_argument("--train", nargs="+", choices=list(OBJECTIVES), help="default: all that the text allows")
    parser.add_argument("--target", type=Path, help="a text file with a translation of each line of --input")
    parser.add_argument("--also", nargs="*", default=[], help="models of the same tokenizer, as paths in --work")
    parser.add_argument("--data", default="data/valid", help="data set to analyze, as a path in --work")
    parser.add_argument("--shuffled", action="store_true", help="also analyze text with shuffled words")
    args = parsed(parser)
    args.train = args.train or [name for name in OBJECTIVES if args.target or name != TRANSLATION]
    if TRANSLATION in args.train and not args.target:
        raise UserError(f"--train {TRANSLATION} needs --target, a translation of each line of --input")
    args.target = args.target and args.target.absolute()
    return args


def prepare_pairs(args: argparse.Namespace) -> None:
    """A tokenizer of both languages, the pairs, and the sources alone for the models that do not translate."""
    pair = ["--input", f"pair:{args.input},{args.target}"]
    make_tokenizer(args, *pair)
    prepare(args, VALID_FRACTION, *pair, "--max-pair-tokens", SEQ_LEN - 2, out="pairs")
    prepare(args, VALID_FRACTION, "--input", args.input, "--separator", "line")


def report(args: argparse.Namespace) -> None:
    found = json.loads((args.work / "layers.json").read_text(encoding="utf-8"))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("similarity", "information"):
        shutil.copyfile(args.work / f"layers/{kind}.png", args.out.with_name(f"{args.out.stem}_{kind}.png"))
    page = f"""# Layers of models by objective

{" and ".join(f'"{name}" ({TITLES[name]})' for name in args.train)}: {small_models.about(args, args.train)}
Losses of different objectives cannot be compared. Other models are described where they come from, such as
[word_order](word_order.md).

{losses(args, args.train)}

![Similarity of consecutive layers]({args.out.stem}_similarity.png)

![Information of layers about tokens]({args.out.stem}_information.png)

[docs/analysis.md](../../docs/analysis.md) explains the measures, the intervals and the results.

## Does a model lose the input token, and regain it?

Change of the share that the states explain of the token that is shown: from the embeddings to the layer with the
largest loss, and from there to the last layer. ± half of the 95% interval of the paired change. "*" marks changes that
are significant (5%) by Holm's procedure over all layers, as the layer was chosen after the fact. The intervals keep the
clusters fixed: other clusters would also change the figures.

{changes(found["models"])}

## Share of the token's entropy in clusters of states

For the {found["settings"]["tokens"]:,} most frequent tokens, by {found["settings"]["clusters"]:,} clusters; layer 0 is
the embeddings.

{information(found["models"])}

## Consecutive layers

{found["settings"]["positions"]:,} positions of each kind; ± half of the 95% interval.

{similarities(found["models"])}
"""
    write_page(args.out, page, ("torch", "deepspeed", "transformers"))


def changes(models: dict[str, Any]) -> str:
    """The largest loss of the token shown, and what the last layer regains of it, by model and kind of positions."""
    rows = []
    for name, text, model in texts(models):
        for one in model["information"]:
            if one["of"] == "seen" and len(one["at"]) > 2:
                inner = slice(1, -1)
                lost, regained = one["since_first"][inner], one["until_last"][inner]
                least = min(range(len(lost)), key=lambda layer: lost[layer]["value"])
                cells = [marked(of, least) for of in (lost, regained)]
                rows.append([name, text, one["kind"], str(least + 1), *cells])
    return table(
        ["model", "text", "positions", "lowest inner layer", "change to it", "from it to the last layer"], *rows
    )


def marked(changes_of: Sequence[dict[str, float]], layer: int) -> str:
    """One change, with "*" if it is significant among the changes of all layers."""
    significant = [adjusted < ALPHA for _, adjusted, _ in holm([p_value(one) for one in changes_of])]
    one = changes_of[layer]
    return f"{one['value']:+.3f} ± {one['high'] - one['value']:.3f}{'*' if significant[layer] else ''}"


def p_value(change: dict[str, float]) -> float:
    """Two-sided p-value for no change, from a jackknife interval."""
    half = change["high"] - change["value"]
    if half == 0:
        return 1.0
    return float(2 * stdtr(GROUPS - 1, -abs(change["value"]) / half * JACKKNIFE_T))


def similarities(models: dict[str, Any]) -> str:
    depth = max(model["layers"] for _, _, model in texts(models))
    header = ["model", "text", "positions", "measure", *(f"{n} and {n + 1}" for n in range(depth)), "chance"]
    rows = [
        [name, text, one["kind"], one["measure"], *padded(one["between"], depth), f"{max(one['chance']):.3f}"]
        for name, text, model in texts(models)
        for one in model["similarities"]
    ]
    return table(header, *rows)


def information(models: dict[str, Any]) -> str:
    depth = max(model["layers"] for _, _, model in texts(models))
    header = ["model", "text", "token, position", "positions", *map(str, range(depth + 1))]
    rows = [
        [name, text, f"{one['of']}, {one['kind']}", f"{one['positions']:,}", *padded(one["at"], depth + 1)]
        for name, text, model in texts(models)
        for one in model["information"]
    ]
    return table(header, *rows)


def texts(models: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each model in each text."""
    for name, by_text in models.items():
        for text, model in by_text.items():
            yield Path(name).name, text, model


def padded(estimates: list[dict[str, float]], width: int) -> list[str]:
    cells = [f"{one['value']:.3f} ± {one['high'] - one['value']:.3f}" for one in estimates]
    return cells + [""] * (width - len(cells))


if __name__ == "__main__":
    run(main)
