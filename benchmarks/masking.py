"""Masking a batch on one core: Maskwright against transformers' DataCollatorForLanguageModeling.

    python benchmarks/masking.py
    maskwright prep run --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert --out data/books
    python benchmarks/masking.py --data data/books

Both sides mask the same rows: packed ones of the data set, or of the bundled text. The collator is given what serves it
best: special_tokens_mask, offset_mapping of the data set's word starts, no padding to do; it is called in every way it
offers, and the fastest counts; and its bare inner function is called on arrays that are ready. The sides take turns,
round by round, on one thread. Prints tables and writes them to --out.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and numpy are imported

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

import numpy as np
import torch
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from benchmarks.machine import conditions, warn_if_busy
from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.format import Dataset
from pretrain.config import MaskingConfig
from pretrain.data import Position
from pretrain.data.batch import build_batch, lay_out
from pretrain.data.stream import Part, RowStream
from pretrain.data.token_flags import flag_reader
from pretrain.data.window import BlockReader
from pretrain.masking import (
    IGNORED,
    WORD_START,
    MaskedTokens,
    Replacement,
    Rows,
    Vocabulary,
)
from pretrain.objectives import strategy_of

SHAPES = ((512, 128), (128, 512), (64, 1024))  # rows, slots of a row
RATE, SEED = 0.15, 7
MASKING = MaskingConfig()
STRATEGIES: dict[str, dict[str, float]] = {
    "token": {"token": 1},
    "whole_word": {"whole_word": 1},
    "span": {"span": 1},
    "ngram": {"ngram": 1},
    "mix": {"token": 1, "whole_word": 1, "span": 1},
}
BATCH = "laid out, too"  # of Maskwright
INNER = "inner function"  # of the collator

# Before the first measurement, for rows of 512 slots: nanoseconds a token on this kind of processor.
PREDICTION = """Predicted before the first measurement, in ns a token. Draws: a counter of Philox holds 8 columns, and a
row has one for each slot and three for each prediction, so 0.18 counters a token, of 25 to 35 ns each: 5 to 6. Sorting
a row's draws of 16 bits: 1; of its units with their lengths, 64 bits: 4 to 6. The rest is passes over the slots, 1 ns
each for 8-byte numbers: 8 for tokens, 30 where units are found first. Together 15 for tokens (67 million a second), 45
for words, 60 for spans. The collator: 40 bare, 100 to 200 as it is called, for it makes arrays of lists; by words it
compares each token with each of its row, 1 to 2 ns a pair: 300 for rows of 128, 1,000 and 2,000 for 512 and 1,024."""

Call = Callable[[], tuple[np.ndarray, np.ndarray]]
"""Mask the batch: what is seen, and the labels, IGNORED or -100 where nothing is predicted."""


@dataclass(frozen=True)
class Work:
    """A batch as both sides are given it.

    parts, rows: R packed rows of S slots, not laid out and laid out.
    offsets [R, S, 2] int64: where each token stands in a text, with a space before each word.
    """

    parts: list[Part]
    rows: Rows
    offsets: np.ndarray
    vocabulary: Vocabulary
    tokenizer: PreTrainedTokenizerBase


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a data set folder; the bundled text if not given")
    parser.add_argument("--rounds", type=int, default=9, help="each measures every side once")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/masking.md")
    args = parser.parse_args()
    load = warn_if_busy()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Random token replacement is not supported")
    sections = []
    with tempfile.TemporaryDirectory(prefix="masking-") as folder:
        data = Dataset(args.data or bundled(Path(folder)))
        for n_rows, seq_len in SHAPES:
            work = work_of(data, n_rows, seq_len)
            for kind in ("token", "whole_word"):
                sections.append(compared(work, kind, args.rounds))
                print(sections[-1], flush=True)
            sections.append(alone(work, args.rounds))
            print(sections[-1], flush=True)
    report = report_of(data, args.rounds, sections) + conditions("masking.py", ("numpy", "torch", "transformers"), load)
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def bundled(folder: Path) -> Path:
    """The bundled text as a data set, with a tokenizer of its own."""
    text, tokenizer, data = ROOT / "configs/demo/books.jsonl.zst", folder / "tokenizer", folder / "books"
    kind = ("--kind", "wordpiece", "--vocab-size", 4096)
    for words in (
        ("tokenizer", "train", "--input", text, *kind, "--out", tokenizer),
        ("prep", "run", "--input", text, "--tokenizer", tokenizer, "--valid-fraction", 0, "--out", data),
    ):
        command = [sys.executable, "-m", "launchers.cli", *map(str, words)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"the bundled text cannot be prepared:\n{done.stderr[-4000:]}")
    return data


def work_of(data: Dataset, n_rows: int, seq_len: int) -> Work:
    """The first rows of the stream of a run."""
    vocabulary = Vocabulary.of(data.manifest.tokenizer)
    stream = RowStream(BlockReader(data, flags=flag_reader(data, WORD_START)), SEED, 256, "best_fit", look_ahead=False)
    parts, position = stream.take(Position(), n_rows, seq_len)
    if position.epoch:
        raise UserError(f"{data.location} has fewer than {n_rows} rows of {seq_len}; give a larger one with --data")
    rows = lay_out(parts, n_rows, seq_len, vocabulary).rows
    ends = 2 * np.arange(seq_len) + 1
    begins = (rows.flags & WORD_START) > 0
    offsets = np.stack([np.where(begins, ends - 1, ends - 2), np.broadcast_to(ends, begins.shape)], axis=-1)
    # Of no use to rows without padding, an attention mask is not asked for.
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer_path, model_input_names=["input_ids"])
    stream.close()
    return Work(parts, rows, offsets, vocabulary, tokenizer)


def maskwright(work: Work, kind: str) -> dict[str, Call]:
    """Masking of rows that are laid out, and of rows that are not yet."""
    strategies = [(strategy_of(MASKING, name, work.vocabulary), weight) for name, weight in STRATEGIES[kind].items()]
    mask = MaskedTokens(work.vocabulary, strategies, RATE, Replacement(), SEED, "train")
    n_rows, seq_len = work.rows.tokens.shape

    def masked() -> tuple[np.ndarray, np.ndarray]:
        found = mask(work.rows, RATE)
        return found.tokens, found.labels

    def built() -> tuple[np.ndarray, np.ndarray]:
        batch = build_batch(work.parts, n_rows, seq_len, work.vocabulary, mask, RATE)
        return batch.tokens, batch.labels

    return {"Maskwright": masked, f"Maskwright, {BATCH}": built}


def collator(work: Work, kind: str) -> dict[str, Call]:
    """Every way to call the collator."""
    whole_word = kind == "whole_word"
    special = ~work.vocabulary.is_ordinary[work.rows.tokens]
    arrays = {"input_ids": work.rows.tokens, "special_tokens_mask": special.astype(np.int64)}
    if whole_word:
        arrays["offset_mapping"] = work.offsets
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    rows = range(len(work.rows.tokens))
    given: dict[str, list[dict[str, Any]]] = {
        "lists": [{name: array[row].tolist() for name, array in arrays.items()} for row in rows],
        "arrays": [{name: array[row] for name, array in arrays.items()} for row in rows],
        "tensors": [{name: tensor[row] for name, tensor in tensors.items()} for row in rows],
    }
    calls: dict[str, Call] = {}
    for to, ways in (("pt", ("lists", "arrays", "tensors")), ("np", ("lists", "arrays"))):
        make = DataCollatorForLanguageModeling(
            work.tokenizer, mlm_probability=RATE, whole_word_mask=whole_word, return_tensors=to, seed=SEED
        )
        made = "tensors" if to == "pt" else "arrays"
        make.create_rng()
        for way in ways:
            calls[f"collator, {way} to {made}"] = partial(collated, make, given[way])
        ready = tensors if to == "pt" else arrays
        inner = make.torch_mask_tokens if to == "pt" else make.numpy_mask_tokens
        # It writes into what it is given, and is given the same again: that costs as much.
        others = {name: value for name, value in ready.items() if name != "input_ids"}
        own = work.rows.tokens.copy() if to == "np" else torch.from_numpy(work.rows.tokens.copy())
        calls[f"collator, {INNER} on {made}"] = partial(inner, own, **others)
    return calls


def collated(make: DataCollatorForLanguageModeling, examples: list[dict[str, Any]]) -> tuple[Any, Any]:
    batch = make(examples)
    return batch["input_ids"], batch["labels"]


def measured(calls: dict[str, Call], slots: int, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds of processor time a slot, of each round; calls take turns, each for a tenth of a second or once."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            begin, times = time.process_time_ns(), 0
            while not times or time.process_time_ns() - begin < 1e8:
                call()
                times += 1
            found[name].append((time.process_time_ns() - begin) / times / slots)
    return found


def compared(work: Work, kind: str, rounds: int) -> str:
    """A table of Maskwright and the collator."""
    n_rows, seq_len = work.rows.tokens.shape
    ours, theirs = maskwright(work, kind), collator(work, kind)
    shares = {name: predicted(work, call) for name, call in (ours | theirs).items()}
    found = measured(ours | theirs, n_rows * seq_len, rounds)
    median = {name: statistics.median(times) for name, times in found.items()}
    best = {
        which: min((name for name in theirs if (INNER in name) == (which == INNER)), key=median.__getitem__)
        for which in ("as called", INNER)
    }
    mine = found["Maskwright"]
    lines = [
        f"### {kind}, {n_rows} rows of {seq_len}",
        "",
        "| | ns a slot | million slots/s | Maskwright is faster by (least, most of the rounds) | predicted |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in found:
        ratios = [theirs / ours for theirs, ours in zip(found[name], mine, strict=True)]
        faster = f"{statistics.median(ratios):.1f} x ({min(ratios):.1f}, {max(ratios):.1f})" if name in theirs else ""
        title = f"**{name}**" if name in best.values() else name
        lines.append(f"| {title} | {median[name]:.1f} | {1e3 / median[name]:.1f} | {faster} | {shares[name]:.2%} |")
    return "\n".join(lines) + "\n"


def alone(work: Work, rounds: int) -> str:
    """A table of Maskwright's strategies."""
    n_rows, seq_len = work.rows.tokens.shape
    calls = {kind: maskwright(work, kind)["Maskwright"] for kind in STRATEGIES}
    shares = {name: predicted(work, call) for name, call in calls.items()}
    found = measured(calls, n_rows * seq_len, rounds)
    lines = [
        f"### Maskwright's strategies, {n_rows} rows of {seq_len}",
        "",
        "| | ns a slot (least, most of the rounds) | million slots/s | predicted |",
        "|---|---:|---:|---:|",
    ]
    for kind, times in found.items():
        name, median = " + ".join(STRATEGIES[kind]), statistics.median(times)
        spread = f"{median:.1f} ({min(times):.1f}, {max(times):.1f})"
        lines.append(f"| {name} | {spread} | {1e3 / median:.1f} | {shares[kind]:.2%} |")
    return "\n".join(lines) + "\n"


def predicted(work: Work, call: Call) -> float:
    """The share of ordinary tokens that one call predicts."""
    labels = np.asarray(call()[1])
    share = float((labels != IGNORED).sum() / work.vocabulary.is_ordinary[work.rows.tokens].sum())
    if not 0.8 * RATE < share < 1.25 * RATE:
        raise UserError(f"{share:.1%} of the tokens are predicted; the sides do not do the same work")
    return share


def report_of(data: Dataset, rounds: int, sections: list[str]) -> str:
    totals, info = data.manifest.totals, data.manifest.tokenizer
    tables = "\n".join(sections)
    return f"""# Masking: speed

Processor time on one thread, medians of {rounds} rounds in which the sides take turns. {totals.documents:,} documents
of {totals.tokens / totals.documents:,.0f} tokens on average, a vocabulary of {info.vocab_size:,}; {RATE:.0%} is
predicted. In bold the fastest way to call the collator, and the faster of its inner functions. In the last column the
share of ordinary tokens that is predicted.

- Maskwright: rows as an array, to tokens, positions and labels; "{BATCH}": from packed pieces to all of a batch.
- The collator is given special_tokens_mask, and for words offset_mapping. It replaces words by [MASK] alone, which is
  less work than 80/10/10; it draws special tokens and originals as replacements; it predicts a share on average.
- "{INNER}": torch_mask_tokens or numpy_mask_tokens, on arrays that are ready: no collating.

{PREDICTION}

{tables}
"""


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
