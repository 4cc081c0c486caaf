"""Masking a batch on one core: Maskwright against transformers' DataCollatorForLanguageModeling.

    python -m benchmarks.masking
    maskwright prep run --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert --out data/books
    python -m benchmarks.masking --data data/books

Both sides mask the same packed rows of the data set or of the bundled text. The collator gets its best input:
special_tokens_mask, offset_mapping of the word starts, no padding. It is called in every way that it offers, and the
fastest counts. Its inner function is also called directly on arrays. The sides take turns on one thread.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and numpy are imported

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from benchmarks.harness import BOOKS, options, prepare_text, ratios, run, spread, table, warn_if_busy, write_page
from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.config import MaskingConfig
from pretrain.data.batch import lay_out
from pretrain.data.stream import Part, Position, RowStream
from pretrain.data.token_flags import flag_reader
from pretrain.data.window import BlockReader
from pretrain.masking import IGNORED, MaskedTokens, Rows, TokenFlag, Vocabulary

SHAPES = ((512, 128), (128, 512), (64, 1024))  # rows, slots of a row
RATE, SEED = 0.15, 7
STRATEGIES: dict[str, dict[str, float]] = {
    "token": {"token": 1},
    "whole_word": {"whole_word": 1},
    "span": {"span": 1},
    "mix": {"token": 1, "whole_word": 1, "span": 1},
}
BATCH = "with layout"  # of Maskwright
INNER = "inner function"  # of the collator

Call = Callable[[], tuple[np.ndarray, np.ndarray]]
"""Mask the batch: input ids, and labels, which are IGNORED or -100 where nothing is predicted."""


@dataclass(frozen=True)
class Work:
    """A batch as both sides get it.

    parts, rows: R packed rows of S slots, before and after layout.
    offsets [R, S, 2] int64: each token's place in a text with a space before each word.
    """

    parts: list[Part]
    rows: Rows
    offsets: np.ndarray
    vocabulary: Vocabulary
    tokenizer: PreTrainedTokenizerBase


def main() -> None:
    parser = options(__doc__, "masking")
    parser.add_argument("--data", type=Path, help="a data set folder (default: the bundled text)")
    parser.add_argument("--rounds", type=int, default=9, help="each measures every side once")
    args = parser.parse_args()
    warn_if_busy()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Random token replacement is not supported")
    sections = []
    with tempfile.TemporaryDirectory(prefix="masking-") as folder:
        data = Dataset(args.data or prepare_text(Path(folder), BOOKS, 4096))
        for n_rows, seq_len in SHAPES:
            work = work_of(data, n_rows, seq_len)
            for kind in ("token", "whole_word"):
                sections.append(compared(work, kind, args.rounds))
                print(sections[-1], flush=True)
            sections.append(alone(work, args.rounds))
            print(sections[-1], flush=True)
    write_page(args.out, page(data, args.rounds, sections), ("numpy", "torch", "transformers"))


def work_of(data: Dataset, n_rows: int, seq_len: int) -> Work:
    """The first rows of the stream of a run."""
    vocabulary = Vocabulary.of(data.manifest.tokenizer)
    stream = RowStream(
        BlockReader(data, flags=flag_reader(data, TokenFlag.WORD_START)), SEED, 256, "best_fit", look_ahead=False
    )
    parts, position = stream.take(Position(), n_rows, seq_len)
    if position.epoch:
        raise UserError(f"{data.location} has fewer than {n_rows} rows of {seq_len}; choose a larger one with --data")
    rows = lay_out(parts, n_rows, seq_len, vocabulary).rows
    ends = 2 * np.arange(seq_len) + 1
    begins = (rows.flags & TokenFlag.WORD_START) > 0
    offsets = np.stack([np.where(begins, ends - 1, ends - 2), np.broadcast_to(ends, begins.shape)], axis=-1)
    # Rows without padding need no attention mask.
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer_path, model_input_names=["input_ids"])
    stream.close()
    return Work(parts, rows, offsets, vocabulary, tokenizer)


def maskwright(work: Work, kind: str) -> dict[str, Call]:
    """Masking of rows after layout, and with layout."""
    mask = MaskedTokens(MaskingConfig(strategy=STRATEGIES[kind], rate=RATE), work.vocabulary, SEED, "train")
    n_rows, seq_len = work.rows.tokens.shape

    def masked() -> tuple[np.ndarray, np.ndarray]:
        batch = mask(work.rows, RATE)
        return batch.tokens, batch.labels

    def built() -> tuple[np.ndarray, np.ndarray]:
        batch = lay_out(work.parts, n_rows, seq_len, work.vocabulary).masked(mask, RATE)
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
        # It overwrites its input, which is the same each time: that takes as long.
        others = {name: value for name, value in ready.items() if name != "input_ids"}
        own = work.rows.tokens.copy() if to == "np" else torch.from_numpy(work.rows.tokens.copy())
        calls[f"collator, {INNER} on {made}"] = partial(inner, own, **others)
    return calls


def collated(make: DataCollatorForLanguageModeling, examples: list[dict[str, Any]]) -> tuple[Any, Any]:
    batch = make(examples)
    return batch["input_ids"], batch["labels"]


def measured(calls: dict[str, Call], slots: int, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds of processor time per slot in each round; calls take turns, each for a tenth of a second."""
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
    """Section of Maskwright and the collator."""
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
    header = ["", "ns per slot", "million slots/s", "Maskwright's speed (least to most)", "predicted"]
    lines = []
    for name in found:
        faster = spread(ratios(found[name], mine), ".1f") if name in theirs else ""
        title = f"**{name}**" if name in best.values() else name
        lines.append([title, f"{median[name]:.1f}", f"{1e3 / median[name]:.1f}", faster, f"{shares[name]:.2%}"])
    return f"### {kind}, {n_rows} rows of {seq_len}\n\n{table(header, *lines)}\n"


def alone(work: Work, rounds: int) -> str:
    """Section of Maskwright's strategies."""
    n_rows, seq_len = work.rows.tokens.shape
    calls = {kind: maskwright(work, kind)["Maskwright"] for kind in STRATEGIES}
    shares = {name: predicted(work, call) for name, call in calls.items()}
    found = measured(calls, n_rows * seq_len, rounds)
    lines = [
        [
            " + ".join(STRATEGIES[kind]),
            spread(times, ".1f"),
            f"{1e3 / statistics.median(times):.1f}",
            f"{shares[kind]:.2%}",
        ]
        for kind, times in found.items()
    ]
    strategies = table(["", "ns per slot (least to most)", "million slots/s", "predicted"], *lines)
    return f"### Maskwright's strategies, {n_rows} rows of {seq_len}\n\n{strategies}\n"


def predicted(work: Work, call: Call) -> float:
    """Share of ordinary tokens that one call predicts."""
    labels = np.asarray(call()[1])
    share = float((labels != IGNORED).sum() / work.vocabulary.is_ordinary[work.rows.tokens].sum())
    if not 0.8 * RATE < share < 1.25 * RATE:
        raise UserError(f"{share:.1%} of the tokens are predicted; the sides do not do the same work")
    return share


def page(data: Dataset, rounds: int, sections: list[str]) -> str:
    totals, info = data.manifest.totals, data.manifest.tokenizer
    tables = "\n".join(sections)
    return f"""# Masking: speed

Processor time on one thread, medians of {rounds} rounds, in turns. {totals.documents:,} documents
of {totals.tokens / totals.documents:,.0f} tokens on average, a vocabulary of {info.vocab_size:,}; {RATE:.0%} is
predicted. Bold: the fastest way to call the collator, and the faster of its inner functions. Last column: share of
ordinary tokens that is predicted.

- Maskwright: from rows as an array to tokens, positions and labels; "{BATCH}": from packed pieces to a whole batch.
- The collator gets special_tokens_mask, and for words offset_mapping. It replaces words only by [MASK], which is less
  work than 80/10/10. It may draw special tokens and the original as replacement. Its share is an average.
- "{INNER}": torch_mask_tokens or numpy_mask_tokens on arrays, without collating.

{tables}
"""


if __name__ == "__main__":
    run(main)
