"""Pseudo-log-likelihoods of sentences: `maskwright evaluate` against plain loops over transformers' model.

    python -m benchmarks.pseudo_likelihood
    python -m benchmarks.pseudo_likelihood --pairs blimp.jsonl --sentences 400

A BERT with random weights scores sentences of the bundled text or of minimal pairs. The sides: one masked copy at a
time, as in the definition; the copies of one sentence in a batch, as scoring packages do it; and ours. All three score
the same sentences in turns, and must agree. Runs on the GPU if there is one, else on one thread.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and numpy are imported

import argparse
import json
import random
import re
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from benchmarks.harness import BOOKS, options, ratios, seconds_in_turns, spread, table, warn_if_busy, write_page
from data_prep.tokenizer import train_tokenizer
from evaluation.likelihood.minimal_pairs import read_pairs
from evaluation.likelihood.predictors import FinishedModel, open_model
from evaluation.likelihood.sentence_scores import sentence_scores

VOCABULARY = 8192
AGREE = 1e-3  # nats per sentence
Side = Callable[[list[str]], np.ndarray]  # scores of sentences


def main() -> None:
    args = arguments()
    warn_if_busy()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_model(Path(temporary) / "model", args)
        sentences = sentences_of(args)
        sides = sides_of(folder)
        check(sides, sentences[:20])
        seconds = seconds_in_turns({name: partial(side, sentences) for name, side in sides.items()}, args.rounds)
        copies = sum(len(sentence.ids) for sentence in open_model(folder).tokenizer(sentences))
    write_page(args.out, page(seconds, args, len(sentences), copies), ("torch", "transformers"))


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "pseudo_likelihood")
    parser.add_argument("--pairs", help="a file of minimal pairs (default: the bundled text)")
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5, help="each measures every side once")
    return parser.parse_args()


def save_model(folder: Path, args: argparse.Namespace) -> Path:
    """A BERT with random weights, and a tokenizer trained on the bundled text."""
    train_tokenizer(texts(), "wordpiece", VOCABULARY, folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    torch.manual_seed(0)
    sizes = {"hidden_size": args.hidden, "num_hidden_layers": args.layers, "intermediate_size": 4 * args.hidden}
    config = BertConfig(vocab_size=len(tokenizer), num_attention_heads=args.hidden // 64, pad_token_id=0, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def texts() -> list[str]:
    with fsspec.open(str(BOOKS), "rt", encoding="utf-8", compression="infer") as file:
        return [json.loads(line)["text"] for line in file][:200]


def sentences_of(args: argparse.Namespace) -> list[str]:
    """Sentences, drawn with a fixed seed; sentences of the bundled text have 4 to 20 words."""
    if args.pairs:
        sentences = [text for pair in read_pairs(args.pairs) for text in pair.texts]
    else:
        parts = (part for text in texts() for part in re.split(r"(?<=[.!?])\s+", text))
        sentences = [part for part in parts if 4 <= len(part.split()) <= 20]
    return random.Random(0).sample(sentences, min(args.sentences, len(sentences)))


def sides_of(folder: Path) -> dict[str, Side]:
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours: FinishedModel = open_model(folder)
    return {
        "one copy at a time": lambda sentences: plain(model, tokenizer, sentences, at_once=1),
        "the copies of a sentence": lambda sentences: plain(model, tokenizer, sentences, at_once=512),
        "maskwright": lambda sentences: sentence_scores(ours, sentences),
    }


@torch.no_grad()
def plain(model: Any, tokenizer: Any, sentences: list[str], at_once: int) -> np.ndarray:
    """The original form, `at_once` copies of a sentence in a batch, all logits computed."""
    scores = []
    for sentence in sentences:
        ids = torch.tensor(tokenizer(sentence)["input_ids"], device=model.device)
        masked = torch.arange(1, len(ids) - 1, device=model.device)
        total = 0.0
        for part in masked.split(at_once):
            copies = ids.repeat(len(part), 1)
            here = torch.arange(len(part), device=model.device)
            copies[here, part] = tokenizer.mask_token_id
            logits = model(input_ids=copies).logits[here, part]
            total += float(logits.log_softmax(1).gather(1, ids[part][:, None]).sum())
        scores.append(total)
    return np.array(scores)


def check(sides: dict[str, Side], sentences: list[str]) -> None:
    scores = {name: side(sentences) for name, side in sides.items()}
    for name, of_side in scores.items():
        difference = np.abs(of_side - scores["maskwright"]).max()
        assert difference < AGREE, f"{name} differs by {difference} nats"


def page(seconds: dict[str, list[float]], args: argparse.Namespace, sentences: int, copies: int) -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, one thread"
    text = "minimal pairs" if args.pairs else "the bundled text"
    rows = []
    for name, times in seconds.items():
        median = statistics.median(times)
        relative = spread(ratios(times, seconds["maskwright"]))
        rows.append([name, f"{sentences / median:,.0f}", f"{copies / median:,.0f}", relative])
    header = ["", "sentences per second", "predictions per second", "time relative to ours (median, least to most)"]
    return f"""# Scoring sentences by pseudo-log-likelihood

{device}, fp32: BERT with {args.layers} layers of {args.hidden} and {VOCABULARY:,} ids,
{sentences} sentences of {copies / sentences:.1f} tokens on average ({text}), {args.rounds} rounds in turns.
Scores of the sides differ by less than {AGREE} nats.

{table(header, *rows)}
"""


if __name__ == "__main__":
    main()
