"""What each filter of a preparation costs, on one core.

    python benchmarks/cleaning.py --input books-00.jsonl.zst --evaluation blimp.jsonl.zst

Each filter works on all documents of the file, in memory. Resolving is of that many made-up hashes. Prints a table and
writes it to --out.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.machine import conditions, warn_if_busy
from benchmarks.prep import texts_of
from data_prep.cleaning import (
    Cleaning,
    clean_all,
    contaminated,
    document_hashes,
    evaluation_grams,
    evaluation_texts,
    resolve_repeats,
)
from data_prep.cleaning.near_duplicates import bands_and_rows, signatures
from data_prep.files import atomic_writer

ROUNDS = 3
SHARE_OF_COPIES = 0.1
TASKS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, type=Path, help="a .jsonl.zst file with a text field")
    parser.add_argument("--evaluation", required=True, type=Path, help="an evaluation file")
    parser.add_argument("--documents", type=int, default=10_000_000, help="to resolve")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/cleaning.md")
    args = parser.parse_args()
    load = warn_if_busy()
    encoded = texts_of(args.input)
    texts, size = [text.decode() for text in encoded], sum(map(len, encoded)) / 1e6
    grams, _ = evaluation_grams(evaluation_texts(args.evaluation))
    filters: dict[str, Callable[[], Any]] = {
        "NFC and lengths": lambda: clean_all(texts, Cleaning(normalize="nfc", min_characters=100)),
        "repetition": lambda: clean_all(texts, Cleaning(repetition=True)),
        "evaluation set": lambda: contaminated(texts, grams),
        "hashes for exact duplicates": lambda: document_hashes(texts),
        "MinHash": lambda: signatures(texts),
    }
    lines = []
    for name, work in filters.items():
        lines.append(f"| {name} | {size / seconds(work, ROUNDS):,.0f} |")
        print(lines[-1], flush=True)
    dropped = clean_all(texts, Cleaning(repetition=True))[1].count("repetitive")
    resolved = [
        f"| exact | {seconds(lambda: resolve(False, args.documents, 2), 1):,.1f} |",
        f"| near | {seconds(lambda: resolve(True, args.documents, bands_and_rows(0.8)[0]), 1):,.1f} |",
    ]
    report = f"""# What filters cost

MB of text a second in one process, medians of {ROUNDS}; {len(texts):,} documents, {size:,.0f} MB. The rules of
repetition drop {dropped:,} of them.

| filter | MB/s |
|---|---:|
{chr(10).join(lines)}

Seconds to make and resolve {args.documents:,} random hashes in {TASKS} tasks, {SHARE_OF_COPIES:.0%} of them copies:

| duplicates | seconds |
|---|---:|
{chr(10).join(resolved)}

"""
    report += conditions("cleaning.py", ("numpy", "xxhash"), load)
    with atomic_writer(args.out) as file:
        file.write(report.encode())
    print(report)


def seconds(work: Callable[[], Any], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


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
