"""Packing of windows of data sets into rows: share of slots used, and speed on one core.

    python -m benchmarks.packing data/books data/sentences

Packs every window of one epoch of each data set, in each mode and for several row lengths. A data set smaller than a
window is repeated to fill one.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import options, table, warn_if_busy, write_page
from data_prep.format import Dataset
from pretrain.config import DataConfig
from pretrain.data.packing import SPECIALS_PER_PIECE, Mode, PackedLayout, pack, randoms_needed
from pretrain.philox import derive_key, draw

SEQ_LENS = (128, 512, 1024, 8192)
WINDOW_BLOCKS = DataConfig.model_fields["window_blocks"].default
ROUNDS = 3
COLUMNS = (
    *("seq_len", "mode", "slots used", "bound", "tokens", "cut", "cut needlessly"),
    *("pieces a row", "squares", "packing", "with draws"),
)


@dataclass
class Sums:
    """Sums over all windows."""

    rows: int = 0
    fewest_rows: int = 0
    fewest_pieces: int = 0
    pieces: int = 0
    documents_cut: int = 0
    fitting_cut: int = 0
    squares: int = 0
    pack_seconds: float = 0.0
    draw_seconds: float = 0.0


def main() -> None:
    parser = options(__doc__, "packing")
    parser.add_argument("datasets", nargs="+", type=Path, help="data set folders")
    args = parser.parse_args()
    warn_if_busy()
    report = f"""# Packing

Windows of {WINDOW_BLOCKS} blocks, all of one epoch; a data set with fewer blocks is repeated to fill one window.

- slots used: share of the slots with a token, a [CLS] or a [SEP]; tokens: with a token.
- bound: the most that a packing can reach if it cuts only documents longer than a row, into full rows and one rest
  (Martello and Toth's L2 bound on the number of rows). `best_fit` exceeds it because it fills holes with parts of full
  rows, `concat` because it cuts anywhere.
- cut: share of documents in more than one piece; cut needlessly: share of documents that are cut but fit in a row.
- squares: sum of the pieces' squared lengths, with special tokens, relative to unbroken rows: the work of attention.
- packing: million tokens per second of processor time (one thread, medians of {ROUNDS}); with draws: including the
  random numbers.

"""
    for path in args.datasets:
        report += section(path) + "\n"
    write_page(args.out, report, ("numpy",))


def section(path: Path) -> str:
    """The table of one data set."""
    windows = windows_of(Dataset(path))
    tokens, documents = sum(int(window.sum()) for window in windows), sum(map(len, windows))
    percentiles = np.percentile(np.concatenate(windows), [1, 10, 50, 90, 99]).astype(int)
    lines = [
        f"## {path.name}\n",
        f"{documents:,} documents, {tokens:,} tokens, windows: {len(windows)}.\n",
        f"Percentiles 1, 10, 50, 90 and 99 of the documents' lengths: {', '.join(f'{p:,}' for p in percentiles)}.\n",
    ]
    rows = []
    for seq_len in SEQ_LENS:
        for mode in get_args(Mode):
            sums = measure(windows, seq_len, mode)
            slots = sums.rows * seq_len
            bound = (tokens + SPECIALS_PER_PIECE * sums.fewest_pieces) / (sums.fewest_rows * seq_len)
            cells = [
                f"{(tokens + SPECIALS_PER_PIECE * sums.pieces) / slots:.2%}",
                f"{bound:.2%}",
                f"{tokens / slots:.2%}",
                f"{sums.documents_cut / documents:.2%}",
                f"{sums.fitting_cut / documents:.2%}",
                f"{sums.pieces / sums.rows:,.2f}",
                f"{sums.squares / slots / seq_len:.1%}",
                f"{tokens / sums.pack_seconds / 1e6:,.0f}",
                f"{tokens / (sums.pack_seconds + sums.draw_seconds) / 1e6:,.0f}",
            ]
            rows.append([f"{seq_len:,}", mode, *cells])
    return "\n".join([*lines, table(COLUMNS, *rows, left=2)]) + "\n"


def windows_of(dataset: Dataset) -> list[NDArray[np.int64]]:
    """The document lengths of each window."""
    order = np.random.default_rng(0).permutation(dataset.n_blocks)
    order = np.resize(order, max(len(order), WINDOW_BLOCKS))
    lengths = [dataset.document_lengths(int(block)).astype(np.int64) for block in order]
    return [np.concatenate(lengths[i : i + WINDOW_BLOCKS]) for i in range(0, len(lengths), WINDOW_BLOCKS)]


def measure(windows: list[NDArray[np.int64]], seq_len: int, mode: Mode) -> Sums:
    sums, key = Sums(), derive_key(0, "packing benchmark")
    capacity = seq_len - SPECIALS_PER_PIECE
    for number, lengths in enumerate(windows):
        starts = np.cumsum(lengths) - lengths
        packing, drawing = [], []
        for _ in range(ROUNDS):
            begin = time.process_time()
            random = draw(key, randoms_needed(lengths, seq_len), number, 0, 0)
            drawn = time.process_time()
            rows = pack(starts, lengths, seq_len, random, mode)
            packing.append(time.process_time() - drawn)
            drawing.append(drawn - begin)
        sums.pack_seconds += statistics.median(packing)
        sums.draw_seconds += statistics.median(drawing)
        cut = pieces_by_document(rows, starts) > 1
        sums.rows += len(rows)
        sums.pieces += len(rows.piece_start)
        sums.documents_cut += int(cut.sum())
        sums.fitting_cut += int((cut & (lengths <= capacity)).sum())
        sums.squares += int(((rows.piece_length + SPECIALS_PER_PIECE) ** 2).sum())
        rests = lengths % capacity
        sums.fewest_pieces += int((-(-lengths // capacity)).sum())
        sums.fewest_rows += int((lengths // capacity).sum())
        sums.fewest_rows += fewest_rows(rests[rests > 0] + SPECIALS_PER_PIECE, seq_len)
    return sums


def pieces_by_document(rows: PackedLayout, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(np.searchsorted(starts, rows.piece_start, side="right") - 1, minlength=len(starts))


def fewest_rows(sizes: NDArray[np.int64], capacity: int) -> int:
    """The lower bound L2 on the number of rows that hold pieces of these sizes.

    For each k of 1..capacity / 2: a piece above capacity - k shares no row with a piece of k or more. Every other piece
    above capacity / 2 also has its own row; what it leaves free is the room for pieces of k..capacity / 2. Source:
    Martello and Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete Applied Mathematics
    28, 1990.
    """
    counts = np.bincount(sizes, minlength=capacity + 2)
    pieces_from = np.cumsum(counts[::-1])[::-1]  # [s] of size s and more
    slots_from = np.cumsum((counts * np.arange(len(counts)))[::-1])[::-1]
    k, middle = np.arange(1, capacity // 2 + 1), capacity // 2 + 1
    alone = pieces_from[capacity - k + 1]
    large = pieces_from[middle] - alone
    large_slots = slots_from[middle] - slots_from[capacity - k + 1]
    without_room = slots_from[k] - slots_from[middle] - (large * capacity - large_slots)
    return int((alone + large + np.maximum(0, -(-without_room // capacity))).max())


if __name__ == "__main__":
    main()
