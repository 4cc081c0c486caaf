"""Speed of each filter of a preparation, on one core.

    python -m benchmarks.cleaning --input books-00.jsonl.zst --evaluation blimp.jsonl.zst

Each filter reads all documents of the file from memory. A range of random hashes is resolved.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import options, seconds_in_turns, table, warn_if_busy, write_page
from benchmarks.prep import texts_of
from data_prep.cleaning import Cleaning, Grams, KeyRange, find_repeats
from data_prep.cleaning.key_passes import document_hashes
from data_prep.cleaning.near_duplicates import bands_and_rows, signatures
from data_prep.cleaning.section_files import section_writer
from data_prep.jobs import PreparationSettings

ROUNDS = 3
SHARE_OF_COPIES = 0.1
TASKS = 10
PART = 1 << 20  # keys that a scan writes together
THRESHOLD = PreparationSettings.near_threshold


def main() -> None:
    parser = options(__doc__, "cleaning")
    parser.add_argument("--input", required=True, type=Path, help="a .jsonl.zst file with a text field")
    parser.add_argument("--evaluation", required=True, type=Path, help="an evaluation file")
    parser.add_argument("--documents", type=int, default=10_000_000, help="hashes to resolve")
    parser.add_argument("--ranges", type=int, default=4, help="number of ranges of the hashes; one is resolved")
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
        "MinHash": lambda: signatures(texts, THRESHOLD),
    }
    times = {name: statistics.median(one) for name, one in seconds_in_turns(filters, ROUNDS).items()}
    dropped = Cleaning(filters=("repetitive",)).clean(texts)[1].count("repetitive")
    kinds = {
        "exact": lambda: resolve(2, 1, args.documents, args.ranges),
        "near": lambda: resolve(1, bands_and_rows(THRESHOLD)[0], args.documents, args.ranges),
    }
    resolved = seconds_in_turns(kinds, 1)
    page = f"""# What filters cost

MB of text per second in one process, medians of {ROUNDS}; {len(texts):,} documents, {size:,.0f} MB. The repetition
rules drop {dropped:,} of them.

{table(["filter", "MB/s"], *([name, f"{size / seconds:,.0f}"] for name, seconds in times.items()))}

Seconds to make and resolve one of {args.ranges:,} ranges of the hashes of {args.documents:,} documents in {TASKS}
tasks, {SHARE_OF_COPIES:.0%} of them copies, with half a gigabyte of memory:

{table(["duplicates", "seconds"], *([kind, f"{seconds:,.1f}"] for kind, (seconds,) in resolved.items()))}
"""
    write_page(args.out, page, ("numpy", "xxhash"))


def resolve(columns: int, keys: int, documents: int, ranges: int, max_bytes: int = 512 << 20) -> None:
    """Make the random keys of one range, `keys` of each document in all ranges, and resolve it."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{task}.keys" for task in range(TASKS)]
        of_task, number = documents // TASKS, documents * keys // TASKS // ranges
        first = None
        for path in files:
            rows = rng.integers(1, (2**64 - 1) // ranges, (number, columns), dtype=np.uint64)
            first = rows if first is None else first
            rows[: int(number * SHARE_OF_COPIES)] = first[: int(number * SHARE_OF_COPIES)]
            owners = np.sort(rng.integers(0, of_task, number)).astype("<u4")
            with section_writer(path, ranges) as add:
                for start in range(0, number, PART):
                    part = slice(start, start + PART)
                    add([rows[part].tobytes() + owners[part].tobytes(), *[b""] * (ranges - 1)])
        del first, rows
        key_range = KeyRange(files, [of_task] * TASKS, columns, 0, ranges)
        begin = time.perf_counter()
        find_repeats(key_range, Path(folder) / "drop", max_bytes)
        print(f"{number * TASKS:,} keys: {time.perf_counter() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
