"""Train a small model to translate with `objective: prefix`, and measure BLEU and chrF on held-out pairs.

    python -m experiments.translation --train train.en.txt.zst train.de.txt.zst --valid val.en.txt.zst val.de.txt.zst

It runs maskwright's commands: a tokenizer for both languages, data sets of the pairs, training, an export. The native
encoder then translates the held-out sources greedily. Run the same command again to resume: results in --work are used
again. Needs sacrebleu: pip install '.[benchmark]'.
"""

import argparse
import json
from pathlib import Path

import yaml

from data_prep.common.files import write_json
from data_prep.common.reading import read_json
from data_prep.tokenizer import Spelling
from evaluation.generation import GenerationRequest, Writer
from experiments import small_models
from experiments.common import (
    keep_settings,
    make_tokenizer,
    maskwright,
    options,
    read_text_lines,
    run,
    run_minutes,
    table,
    write_page,
)
from experiments.small_models import CONFIG
from pretrain.run import JournalReader

_SLOTS = 128  # of a row
_SHOWN = 5  # examples
_LAST = 50  # steps


def main() -> None:
    args = arguments()
    from sacrebleu.metrics import BLEU, CHRF  # fails before the training, not after it

    prepare(args)
    train(args)
    sources, references = (read_text_lines(path) for path in args.valid)
    found = translations(args, sources)
    bleu, chrf = BLEU(), CHRF()
    scores = [
        [name, *(f"{metric.corpus_score(texts, [references]).score:.1f}" for metric in (bleu, chrf))]
        for name, texts in (("model", found), ("the source itself", sources))
    ]
    interval = BLEU().corpus_score(found, [references], n_bootstrap=1000).format(width=1)
    how = f"BLEU with a 95% interval: {interval.split(') ')[0]}), by `{bleu.get_signature().format()}`."
    examples = [list(row) for row in zip(sources, references, found, strict=True)][:_SHOWN]
    write_page(args.out, page(args, scores, how, len(sources), examples), ("torch", "transformers", "sacrebleu"))


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "translation", "translation")
    parser.add_argument("--train", required=True, nargs=2, type=Path, help="two text files, source and target")
    parser.add_argument("--valid", required=True, nargs=2, type=Path, help="two text files to measure on")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=6000, help="of the tokenizer of both languages")
    args = small_models.parsed(parser, "train", "valid", steps=4, layers=1, hidden=16)
    return keep_settings(args, "steps", "layers", "hidden")


def prepare(args: argparse.Namespace) -> None:
    """A tokenizer that loses nothing (byte-level BPE), and data sets of the pairs."""
    files = {"train": args.train, "valid": args.valid}
    pairs = {name: ("--input", f"pair:{source},{target}") for name, (source, target) in files.items()}
    make_tokenizer(args, *pairs["train"], "--kind", "bpe")
    for name, pair in pairs.items():
        out = ("--max-pair-tokens", _SLOTS - 2, "--out", f"data/{name}")
        maskwright(args, "prep", "run", *pair, "--tokenizer", "tokenizer", *out)


def train(args: argparse.Namespace) -> None:
    """Train and export, unless that is done."""
    if (args.work / "model").exists():
        return
    size = {"layers": args.layers, "hidden": args.hidden, "heads": 4, "intermediate": 3 * args.hidden // 2}
    config = {
        "run": {"dir": "run"},
        "data": {"train": "data/train", "valid": "data/valid", "seq_len": _SLOTS},
        "objective": "prefix",
        "model": {"arch": "modernbert", "size": size},
        "optim": CONFIG["optim"],
        "schedule": {"kind": "wsd", "warmup_steps": args.steps // 12, "decay_fraction": 0.4},
        "train": {"steps": args.steps, "global_batch_size": 16},
        "checkpoint": {"every_steps": 200, "keep": 2},
        "eval": {"every_steps": 200},
        "track": {"uri": "none"},
    }
    (args.work / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    maskwright(args, "train", "config.yaml", "--procs", args.procs)
    maskwright(args, "export", "run", "--out", "model")


def translations(args: argparse.Namespace, sources: list[str]) -> list[str]:
    """The greedy translations, kept in valid.json."""
    path = args.work / "valid.json"
    if not path.exists():
        folder = args.work / "model"
        writer, spelling = Writer(folder), Spelling.open(folder)
        write_json(path, [translate(writer, spelling, source) for source in sources])
    kept: list[str] = read_json(path, list[str])
    return kept


def translate(writer: Writer, spelling: Spelling, source: str) -> str:
    """The greedy translation of a text: at most three times as many tokens, plus 10, and no more than a row holds.

    A text that fills a row has an empty one.
    """
    size = len(writer.tokenizer(source, add_special_tokens=False)["input_ids"])
    length = min(3 * size + 10, _SLOTS - size - 2)
    if length < 1:
        return ""
    ((ids, new),) = writer.write(GenerationRequest(source, length, temperature=0))
    return spelling.text(id for id, is_new in zip(ids, new, strict=True) if is_new).strip()


def page(args: argparse.Namespace, scores: list[list[str]], how: str, sources: int, examples: list[list[str]]) -> str:
    metrics = [entry.metrics for entry in JournalReader(args.work / "run/journal.jsonl").entries()]
    last = [values for values in metrics if "eval/loss" in values][-1]
    trained = [values["train/loss"] for values in metrics if "train/loss" in values][-_LAST:]
    facts = json.loads((args.work / "data/train/manifest.json").read_text())["totals"]
    epochs = args.steps * 16 * _SLOTS / (facts["tokens"] + 2 * facts["documents"])
    return f"""# Translation

A ModernBERT of {args.layers} layers x {args.hidden} learns to translate with `objective: prefix`, from
{args.train[0].name} to {args.train[1].name}: {facts["documents"]:,} pairs,
{args.steps:,} steps of 16 rows of {_SLOTS} slots, about {epochs:.1f} epochs. Its steps took
{run_minutes(args.work / "run"):.0f} minutes in one thread. Then it translates the {sources:,} sources of
{args.valid[0].name} greedily. One training run.

{table(["", "BLEU", "chrF"], *scores)}

{how}

Loss of the target tokens: {last["eval/loss"]:.3f} nats on held-out pairs, {last["eval/masked_accuracy"]:.1%} of them
right; {sum(trained) / len(trained):.3f} in the last {len(trained)} steps of training.

## The first held-out sentences

{table(["source", "reference", "model"], *examples, left=3)}
"""


if __name__ == "__main__":
    run(main)
