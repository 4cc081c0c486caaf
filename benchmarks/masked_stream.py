"""Batches for a model of transformers: MaskedStream against the usual data collators.

    maskwright demo
    python -m benchmarks.masked_stream --data data/demo/train

Every side gives int64 tensors of 32 rows of at most 128 tokens with 15% masked, on one core, without workers.
The collators (DataCollatorForLanguageModeling) read ids in memory: rows cut to 128 tokens across documents, and
documents that are padded to the longest of a batch. Sides take turns; the best of each counts.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from benchmarks.harness import options, run, table, warn_if_busy, write_page
from data_prep.format import Dataset
from pretrain.data import MaskedStream

ROWS, SLOTS = 32, 128


def main() -> None:
    parser = options(__doc__, "masked_stream")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    warn_if_busy()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # the thread of MaskedStream too
    sides = sides_of(args.data)
    best = dict.fromkeys(sides, 0.0)
    for _ in range(args.rounds):
        for name, side in sides.items():
            best[name] = max(best[name], tokens_per_second(side(), args.batches))
    collators = {True: best["collator, packed"], False: best["collator, padded"]}
    rows = [
        [name, f"{speed / 1e6:.3f}", f"{speed / collators['packed' in name]:.2f} x" if "Masked" in name else ""]
        for name, speed in best.items()
    ]
    text = f"""# Batches for models of transformers

{(__doc__ or "").partition("train" + chr(10) * 2)[2].strip()}

Million real tokens a second on one core; {args.batches} batches, best of {args.rounds} rounds.

{table(["", "million tokens/s", "against the collator"], *rows)}

A packed row of MaskedStream comes with a mask of {SLOTS} x {SLOTS} that keeps documents apart. The collator's packed
rows have none, so that their documents see each other.
"""
    write_page(args.out, text, ["torch", "transformers", "numpy"])


def sides_of(data: Path) -> dict[str, Callable[[], Iterator[dict[str, Any]]]]:
    dataset = Dataset(data)
    tokenizer = AutoTokenizer.from_pretrained(dataset.tokenizer_path)
    documents = [ids.tolist() for ids in documents_of(dataset)]
    whole = [id for ids in documents for id in ids]
    packed = [whole[at : at + SLOTS] for at in range(0, len(whole) - SLOTS, SLOTS)]
    pieces = [ids[at : at + SLOTS] for ids in documents for at in range(0, len(ids), SLOTS)]

    def collated(rows: list[list[int]]) -> Iterator[dict[str, Any]]:
        collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
        while True:
            yield from DataLoader(
                [{"input_ids": ids} for ids in rows], ROWS, shuffle=True, drop_last=True, collate_fn=collate
            )

    return {
        "MaskedStream, packed": lambda: iter(MaskedStream(str(data), ROWS, SLOTS)),
        "collator, packed": lambda: collated(packed),
        "MaskedStream, padded": lambda: iter(MaskedStream(str(data), ROWS, SLOTS, rows="padded")),
        "collator, padded": lambda: collated(pieces),
    }


def documents_of(dataset: Dataset) -> Iterator[np.ndarray]:
    for block in range(dataset.n_blocks):
        lengths = dataset.document_lengths(block).astype(np.int64)
        tokens = np.empty(int(lengths.sum()), dtype=dataset.dtype)
        dataset.read_tokens(block, tokens)
        yield from np.split(tokens, np.cumsum(lengths)[:-1])


def tokens_per_second(batches: Iterator[dict[str, Any]], number: int) -> float:
    for _ in range(5):
        next(batches)
    tokens, start = 0, time.perf_counter()
    for _ in range(number):
        batch = next(batches)
        mask = batch.get("attention_mask")
        tokens += int(mask.sum()) if mask is not None and mask.dim() == 2 else batch["input_ids"].numel()
    return tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    run(main)
