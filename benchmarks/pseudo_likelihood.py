"""Pseudo-log-likelihoods of sentences: `maskwright evaluate` beside plain loops over transformers' model.

    python benchmarks/pseudo_likelihood.py
    python benchmarks/pseudo_likelihood.py --pairs blimp.jsonl --sentences 400

A BERT with random weights scores sentences of the bundled text, or those of minimal pairs. The sides: one masked copy
at a time, as the definition reads; the copies of one sentence in a batch, as scoring packages do it; and ours. All
three score the same sentences in each round, in turns, and must agree. Runs on the GPU if there is one, else on one
thread.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and numpy are imported

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

import fsspec
import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from benchmarks.machine import conditions, warn_if_busy
from data_prep.files import atomic_writer
from data_prep.tokenizer import train
from evaluation.likelihood import read_pairs
from evaluation.likelihood.predictors import FinishedModel, open_model
from evaluation.likelihood.sentence_scores import sentence_scores

TEXT = ROOT / "configs/demo/books.jsonl.zst"
VOCABULARY = 8192
AGREE = 1e-3  # nats, of a sentence

PREDICTION = """\
Predicted before the first measurement. On a CPU: a copy of 14 slots is 90 million operations in 4 layers of 256, 1.5
ms at 60 billion a second; one at a time the calls of Python and of the operators cost as much again and small
matrices run at half that speed, and every slot meets the vocabulary: 60 million operations more. So 3 to 4 times one
copy at a time, and 1.5 times the copies of one sentence. On a GPU nothing but the number of calls counts: 100 times
and 10 times."""


def main() -> None:
    args = arguments()
    load = warn_if_busy()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_model(Path(temporary) / "model", args)
        sentences = sentences_of(args)
        sides = sides_of(folder)
        seconds = measured(sides, sentences, args.rounds)
        copies = sum(len(one.ids) for one in open_model(folder).tokenizer(sentences))
    report = report_of(seconds, args, len(sentences), copies, load)
    print(report)
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", help="sentences of this file of minimal pairs, not of the bundled text")
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5, help="each measures every side once")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/pseudo_likelihood.md")
    return parser.parse_args()


def save_model(folder: Path, args: argparse.Namespace) -> Path:
    """A BERT with random weights, and a tokenizer trained on the bundled text."""
    train(texts(), "wordpiece", VOCABULARY, folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    torch.manual_seed(0)
    sizes = {"hidden_size": args.hidden, "num_hidden_layers": args.layers, "intermediate_size": 4 * args.hidden}
    config = BertConfig(vocab_size=len(tokenizer), num_attention_heads=args.hidden // 64, pad_token_id=0, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def texts() -> list[str]:
    with fsspec.open(str(TEXT), "rt", encoding="utf-8", compression="infer") as file:
        return [json.loads(line)["text"] for line in file][:200]


def sentences_of(args: argparse.Namespace) -> list[str]:
    """Sentences, drawn by a fixed seed: of 4 to 20 words where they are those of the text."""
    if args.pairs:
        found = [text for pair in read_pairs(args.pairs) for text in (pair.good, pair.bad)]
    else:
        found = [one for text in texts() for one in re.split(r"(?<=[.!?])\s+", text) if 4 <= len(one.split()) <= 20]
    return random.Random(0).sample(found, min(args.sentences, len(found)))


def sides_of(folder: Path) -> dict[str, Callable[[list[str]], np.ndarray]]:
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours: FinishedModel = open_model(folder)
    return {
        "one copy at a time": lambda sentences: plain(model, tokenizer, sentences, together=1),
        "the copies of a sentence": lambda sentences: plain(model, tokenizer, sentences, together=512),
        "maskwright": lambda sentences: sentence_scores(ours, sentences, "original"),
    }


@torch.no_grad()
def plain(model: Any, tokenizer: Any, sentences: list[str], together: int) -> np.ndarray:
    """The original form, `together` copies of a sentence at a time, all logits computed."""
    scores = []
    for sentence in sentences:
        ids = torch.tensor(tokenizer(sentence)["input_ids"], device=model.device)
        places = torch.arange(1, len(ids) - 1, device=model.device)
        total = 0.0
        for part in places.split(together):
            copies = ids.repeat(len(part), 1)
            here = torch.arange(len(part), device=model.device)
            copies[here, part] = tokenizer.mask_token_id
            logits = model(input_ids=copies).logits[here, part]
            total += float(logits.log_softmax(1).gather(1, ids[part][:, None]).sum())
        scores.append(total)
    return np.array(scores)


def measured(
    sides: dict[str, Callable[[list[str]], np.ndarray]], sentences: list[str], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each side in each round; the first calls do not count."""
    expected = {name: side(sentences[:20]) for name, side in sides.items()}
    for name, found in expected.items():
        difference = np.abs(found - expected["maskwright"]).max()
        assert difference < AGREE, f"{name} differs by {difference} nats"
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            begin = time.perf_counter()
            side(sentences)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def report_of(
    seconds: dict[str, list[float]], args: argparse.Namespace, sentences: int, copies: int, load: float
) -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, one thread"
    ours = seconds["maskwright"]
    rows = []
    for name, times in seconds.items():
        ratios = [one / other for one, other in zip(times, ours, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rate = statistics.median(times)
        rows.append(f"| {name} | {sentences / rate:,.0f} | {copies / rate:,.0f} | {spread} |")
    table, text = "\n".join(rows), "minimal pairs" if args.pairs else "the bundled text"
    return f"""# Scoring sentences by pseudo-log-likelihood

{device}, fp32: BERT with {args.layers} layers of {args.hidden} and {VOCABULARY:,} ids,
{sentences} sentences of {copies / sentences:.1f} tokens on average ({text}), {args.rounds} rounds in turns.
Scores of the sides differ by less than {AGREE} nats.

| | sentences a second | predictions a second | time beside ours (median, least to most) |
|---|---:|---:|---:|
{table}

{PREDICTION}

{conditions("pseudo_likelihood.py", ("torch", "transformers"), load)}"""


if __name__ == "__main__":
    main()
