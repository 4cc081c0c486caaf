"""Speed of each filter of a preparation, on one core.

    python -m benchmarks.cleaning --input books-00.jsonl.zst --evaluation blimp.jsonl.zst

Each filter reads all documents of the file from memory. Duplicates are resolved among random hashes.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import options, seconds_in_turns, table, warn_if_busy, write_page
from benchmarks.prep import texts_of
from data_prep.cleaning import Cleaning, Grams, resolve_repeats
from data_prep.cleaning.key_passes import document_hashes
from data_prep.cleaning.near_duplicates import bands_and_rows, signatures

ROUNDS = 3
SHARE_OF_COPIES = 0.1
TASKS = 10


def main() -> None:
    parser = options(__doc__, "cleaning")
    parser.add_argument("--input", required=True, type=Path, help="a .jsonl.zst file with a text field")
    parser.add_argument("--evaluation", required=True, type=Path, help="an evaluation file")
    parser.add_argument("--documents", type=int, default=10_000_000, help="hashes to resolve")
    args = parser.parse_args()
    warn_if_busy()
    encoded = texts_of(args.input)
    texts, size = [text.decode() for text in encoded], sum(map(len, encoded)) / 1e6
    grams, _ = Grams.of_files([args.evaluation], 13)
    filters: dict[str, Callable[[], Any]] = {
        "NFC and lengths": lambda: Cleaning("nfc", ("characters=100-",)).clean(texts),
        "repetition": lambda: Cleaning(filters=("repetitive",)).clean(texts),
        "evaluation set": lambda: grams.occur_in(texts),
        "hashes for exact duplicates": lambda: document_hashes(texts),
        "MinHash": lambda: signatures(texts),
    }
    times = {name: statistics.median(one) for name, one in seconds_in_turns(filters, ROUNDS).items()}
    dropped = Cleaning(filters=("repetitive",)).clean(texts)[1].count("repetitive")
    kinds = {
        "exact": lambda: resolve(False, args.documents, 2),
        "near": lambda: resolve(True, args.documents, bands_and_rows(0.8)[0]),
    }
    resolved = seconds_in_turns(kinds, 1)
    page = f"""# What filters cost

MB of text per second in one process, medians of {ROUNDS}; {len(texts):,} documents, {size:,.0f} MB. The repetition
rules drop {dropped:,} of them.

{table(["filter", "MB/s"], *([name, f"{size / seconds:,.0f}"] for name, seconds in times.items()))}

Seconds to make and resolve {args.documents:,} random hashes in {TASKS} tasks, {SHARE_OF_COPIES:.0%} of them copies:

{table(["duplicates", "seconds"], *([kind, f"{seconds:,.1f}"] for kind, (seconds,) in resolved.items()))}
"""
    write_page(args.out, page, ("numpy", "xxhash"))


def resolve(any_column: bool, documents: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        scans = [Path(folder) / f"{task}.scan.npy" for task in range(TASKS)]
        first = None
        for path in scans:
            rows = rng.integers(1, 2**63, (documents // TASKS, columns), dtype=np.uint64)
            if first is not None:
                copies = int(len(rows) * SHARE_OF_COPIES)
                rows[:copies] = first[:copies]
            first = rows if first is None else first
            np.save(path, rows)
        resolve_repeats(scans, [Path(folder) / f"{task}.drop.npy" for task in range(TASKS)], any_column)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
