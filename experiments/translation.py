"""Train a small model to translate with `objective: prefix`, and measure BLEU and chrF on held-out pairs.

    python -m experiments.translation --train train.en.txt.zst train.de.txt.zst --valid val.en.txt.zst val.de.txt.zst

It runs maskwright's commands: a tokenizer for both languages, data sets of the pairs, training, an export. The native
encoder then translates the held-out sources greedily. Run the same command again to resume: results in --work are used
again. Needs sacrebleu: pip install '.[benchmark]'.
"""

import argparse
import json
import time
from pathlib import Path

from benchmarks.harness import existing, maskwright, options, run, table, warn_if_busy, write_page
from data_prep.common.files import write_json
from data_prep.common.reading import read_json
from data_prep.storage import decompressed_chunks
from data_prep.tokenizer import Spelling
from evaluation.generation import GenerationRequest, Writer

CONFIG = """
run: {{dir: run}}
data: {{train: data/train, valid: data/valid, seq_len: {slots}}}
objective: prefix
model: {{arch: modernbert, size: {{layers: {layers}, hidden: {hidden}, heads: 4, intermediate: {intermediate}}}}}
optim: {{name: muon, lr: 2.0e-3, betas: [0.9, 0.98], weight_decay: 0.01}}
schedule: {{kind: wsd, warmup_steps: {warmup}, decay_fraction: 0.4}}
train: {{steps: {steps}, global_batch_size: 16}}
checkpoint: {{every_steps: 200, keep: 2}}
eval: {{every_steps: 200}}
track: {{models: none}}
"""
_SLOTS = 128  # of a row
_SHOWN = 5  # examples
_LAST = 50  # steps


def main() -> None:
    args = arguments()
    warn_if_busy()
    from sacrebleu.metrics import BLEU, CHRF  # fails before the training, not after it

    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args)
    train(args)
    sources, references = (lines(path) for path in args.valid)
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
    parser = options(__doc__, "translation", "experiments")
    parser.add_argument("--train", required=True, nargs=2, type=Path, help="two text files, source and target")
    parser.add_argument("--valid", required=True, nargs=2, type=Path, help="two text files to measure on")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=6000, help="of the tokenizer of both languages")
    parser.add_argument("--work", type=Path, default=Path("runs/translation"), help="folder of data, run and model")
    args = parser.parse_args()
    args.train, args.valid = ([existing(path) for path in paths] for paths in (args.train, args.valid))
    args.work = args.work.absolute()
    return args


def prepare(args: argparse.Namespace) -> None:
    """A tokenizer that loses nothing (byte-level BPE), and data sets of the pairs."""
    files = {"train": args.train, "valid": args.valid}
    pairs = {name: ("--input", f"pair:{source},{target}") for name, (source, target) in files.items()}
    tokenizer = ("--tokenizer", args.work / "tokenizer")
    if not tokenizer[1].exists():
        size = ("--vocab-size", args.vocab_size)
        maskwright("tokenizer", "train", *pairs["train"], "--kind", "bpe", *size, "--out", tokenizer[1])
    for name, pair in pairs.items():
        out = ("--max-pair-tokens", _SLOTS - 2, "--out", args.work / "data" / name)
        maskwright("prep", "run", *pair, *tokenizer, *out)


def train(args: argparse.Namespace) -> None:
    """Train and export; seconds of the training go to train.json."""
    if (args.work / "model").exists():
        return
    sizes = {"layers": args.layers, "hidden": args.hidden, "intermediate": 3 * args.hidden // 2}
    config = CONFIG.format(**sizes, slots=_SLOTS, steps=args.steps, warmup=args.steps // 12)
    (args.work / "config.yaml").write_text(config, encoding="utf-8")
    begin = time.perf_counter()
    maskwright("train", "config.yaml", "--procs", 1, cwd=args.work)
    write_json(args.work / "train.json", {"seconds": round(time.perf_counter() - begin)})
    maskwright("export", "run", "--out", "model", cwd=args.work)


def lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        return b"".join(decompressed_chunks(file, path.name)).decode().splitlines()


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
    """The greedy translation of a text: at most three times as many tokens, plus 10, and no more than a row holds."""
    size = len(writer.tokenizer(source, add_special_tokens=False)["input_ids"])
    length = min(3 * size + 10, _SLOTS - size - 2)
    ((ids, new),) = writer.write(GenerationRequest(source, length, temperature=0))
    return spelling.text(id for id, is_new in zip(ids, new, strict=True) if is_new).strip()


def page(args: argparse.Namespace, scores: list[list[str]], how: str, sources: int, examples: list[list[str]]) -> str:
    journal = [json.loads(line) for line in (args.work / "run/journal.jsonl").read_text().splitlines()]
    last = [one["metrics"] for one in journal if "eval/loss" in one.get("metrics", {})][-1]
    trained = [one["metrics"]["train/loss"] for one in journal if "train/loss" in one.get("metrics", {})][-_LAST:]
    facts = json.loads((args.work / "data/train/manifest.json").read_text())["totals"]
    minutes = json.loads((args.work / "train.json").read_text())["seconds"] / 60
    epochs = args.steps * 16 * _SLOTS / (facts["tokens"] + 2 * facts["documents"])
    return f"""# Translation

A ModernBERT of {args.layers} layers x {args.hidden} learns to translate with `objective: prefix`, from
{args.train[0].name} to {args.train[1].name}: {facts["documents"]:,} pairs,
{args.steps:,} steps of 16 rows of {_SLOTS} slots, about {epochs:.1f} epochs. This took {minutes:.0f} minutes in one
thread at a low priority, beside other work. Then it translates the {sources:,} sources of
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
