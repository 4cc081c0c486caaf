"""Train a small model to translate with `objective: prefix`, and measure BLEU and chrF on held-out pairs.

    python -m benchmarks.translation --train train.en.txt.zst train.de.txt.zst --valid val.en.txt.zst val.de.txt.zst

It runs maskwright's commands: a tokenizer for both languages, data sets of the pairs, training, an export. The native
encoder then translates the held-out sources greedily. Run the same command again to resume: results in --work are used
again. Needs sacrebleu: pip install '.[benchmark]'.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.harness import maskwright, options, run, table, warn_if_busy, write_page
from data_prep.errors import UserError
from data_prep.files import atomic_writer, write_json
from data_prep.storage import decompressed_chunks
from data_prep.tokenizer import Spelling
from pretrain.export import load_language_model, load_tokenizer
from pretrain.model import Encoder, native_encoder

CONFIG = """
run: {{dir: run}}
data: {{train: data/train, valid: data/valid, seq_len: 128}}
objective: prefix
model: {{arch: modernbert, size: {{layers: {layers}, hidden: {hidden}, heads: 4, intermediate: {intermediate}}}}}
optim: {{name: muon, lr: 2.0e-3, betas: [0.9, 0.98], weight_decay: 0.01}}
schedule: {{kind: wsd, warmup_steps: {warmup}, decay_fraction: 0.4}}
train: {{steps: {steps}, global_batch_size: 16}}
checkpoint: {{every_steps: 200, keep: 2}}
eval: {{every_steps: 200}}
track: {{models: none}}
"""
_AT_ONCE = 64  # sentences
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
    parser = options(__doc__, "translation")
    parser.add_argument("--train", required=True, nargs=2, type=Path, help="two text files, source and target")
    parser.add_argument("--valid", required=True, nargs=2, type=Path, help="two text files to measure on")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=6000, help="of the tokenizer of both languages")
    parser.add_argument("--work", type=Path, default=Path("runs/translation"), help="folder of data, run and model")
    args = parser.parse_args()
    for name in ("train", "valid"):
        setattr(args, name, [path.absolute() for path in getattr(args, name)])
        if missing := next((path for path in getattr(args, name) if not path.is_file()), None):
            raise UserError(f"there is no file {missing}")
    args.work = args.work.absolute()
    return args


def prepare(args: argparse.Namespace) -> None:
    """A tokenizer that loses nothing (byte-level BPE), and data sets of the pairs."""
    pairs = {name: ("--input", f"pair:{source},{target}") for name, (source, target) in inputs(args).items()}
    tokenizer = ("--tokenizer", args.work / "tokenizer")
    if not tokenizer[1].exists():
        size = ("--vocab-size", args.vocab_size)
        maskwright("tokenizer", "train", *pairs["train"], "--kind", "bpe", *size, "--out", tokenizer[1])
    for name, pair in pairs.items():
        maskwright("prep", "run", *pair, *tokenizer, "--max-pair-tokens", 126, "--out", args.work / "data" / name)


def inputs(args: argparse.Namespace) -> dict[str, list[Path]]:
    return {"train": args.train, "valid": args.valid}


def train(args: argparse.Namespace) -> None:
    """Train and export; seconds of the training go to train.json."""
    if (args.work / "model").exists():
        return
    sizes = {"layers": args.layers, "hidden": args.hidden, "intermediate": 3 * args.hidden // 2}
    config = CONFIG.format(**sizes, steps=args.steps, warmup=args.steps // 12)
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
        tokenizer, spelling = load_tokenizer(folder), Spelling.open(folder)
        encoder = native_encoder(load_language_model(folder)[0])
        assert encoder is not None
        documents = [
            [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
            for ids in tokenizer(sources, add_special_tokens=False)["input_ids"]
        ]
        order = sorted(range(len(documents)), key=lambda number: len(documents[number]))
        found = [""] * len(documents)
        for first in range(0, len(order), _AT_ONCE):
            numbers = order[first : first + _AT_ONCE]
            targets = translate(encoder, [documents[number] for number in numbers], tokenizer.sep_token_id)
            for number, ids in zip(numbers, targets, strict=True):
                found[number] = spelling.text(ids).strip()
        with atomic_writer(path) as file:
            file.write(json.dumps(found, ensure_ascii=False).encode())
    kept: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return kept


@torch.no_grad()
def translate(encoder: Encoder, sources: list[list[int]], end: int) -> list[list[int]]:
    """Append the likeliest next id to each document, until it is `end` or the document is as long as the model reads.

    A target has at most three times the tokens of its source, plus 10.
    """
    documents, begins = [list(source) for source in sources], [len(source) for source in sources]
    open_ = list(range(len(documents)))
    while open_:
        for number, id in zip(open_, likeliest(encoder, [documents[number] for number in open_]), strict=True):
            documents[number].append(id)
        most = {number: min(4 * begins[number] + 10, encoder.shape.max_positions) for number in open_}
        open_ = [n for n in open_ if documents[n][-1] != end and len(documents[n]) < most[n]]
    return [[id for id in document[begin:] if id != end] for document, begin in zip(documents, begins, strict=True)]


def likeliest(encoder: Encoder, documents: list[list[int]]) -> list[int]:
    """The likeliest id after each document; a row holds one document and padding."""
    lengths = torch.tensor([len(document) for document in documents])
    width = int(lengths.max())
    rows = [document + [encoder.shape.pad_id] * (width - len(document)) for document in documents]
    starts = torch.arange(len(documents)) * width
    bounds = torch.stack([starts, starts + lengths], dim=1).flatten()
    cu_seqlens = torch.cat([bounds, torch.tensor([width * len(documents)])]).int()
    positions = torch.arange(width).repeat(len(documents))
    states: Tensor = encoder.hidden(torch.tensor(rows).flatten(), positions, cu_seqlens, width, starts + lengths - 1)
    return encoder.logits(states)[:, : encoder.shape.vocab_size].argmax(dim=1).tolist()


def page(args: argparse.Namespace, scores: list[list[str]], how: str, sources: int, examples: list[list[str]]) -> str:
    journal = [json.loads(line) for line in (args.work / "run/journal.jsonl").read_text().splitlines()]
    last = [one["metrics"] for one in journal if "eval/loss" in one.get("metrics", {})][-1]
    trained = [one["metrics"]["train/loss"] for one in journal if "train/loss" in one.get("metrics", {})][-_LAST:]
    facts = json.loads((args.work / "data/train/manifest.json").read_text())["totals"]
    minutes = json.loads((args.work / "train.json").read_text())["seconds"] / 60
    epochs = args.steps * 16 * 128 / (facts["tokens"] + 2 * facts["documents"])
    return f"""# Translation

A ModernBERT of {args.layers} layers x {args.hidden} learns to translate with `objective: prefix`, from
{args.train[0].name} to {args.train[1].name}: {facts["documents"]:,} pairs,
{args.steps:,} steps of 16 rows of 128 slots, about {epochs:.1f} epochs. This took {minutes:.0f} minutes in one thread
at a low priority, beside other work. Then it translates the {sources:,} sources of
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
