"""Attention to near tokens alone: by blocks (pretrain/model/attention.py), against a masked row.

    python benchmarks/local_attention.py

One layer of 12 heads of 64 dimensions that sees 128 tokens, forward and backward, fp32, one document a row. Both take
turns, and their results are compared first. Prints a table and writes it to --out.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import conditions, warn_if_busy
from data_prep.files import atomic_writer
from pretrain.model.attention import band_attention, band_mask

HEADS, PER_HEAD, REACH = 12, 64, 64
ROWS = {512: 4, 1024: 2, 2048: 1, 4096: 1, 8192: 1}  # by length
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="each measures both ways once")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/local_attention.md")
    args = parser.parse_args()
    load = warn_if_busy()
    torch.set_num_threads(1)
    lines = ["| rows | masked row, s | by blocks, s | faster by (least, most) |", "|---|---:|---:|---:|"]
    for length, rows in ROWS.items():
        lines.append(f"| {rows} of {length:,} | {measure(length, rows, args.rounds)} |")
        print(lines[-1], flush=True)
    report = f"""# Local attention

Seconds of a layer's attention, forward and backward: {HEADS} heads of {PER_HEAD}, each token sees {REACH} to either
side, fp32, one thread of a CPU, one document a row; medians of {args.rounds} rounds in which both take turns.

{chr(10).join(lines)}

{conditions("local_attention.py", ("torch",), load)}"""
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def measure(length: int, rows: int, rounds: int) -> str:
    """Cells of the table."""
    document = torch.arange(rows).repeat_interleave(length)
    ways = {"masked": masked(length, rows), "blocks": by_blocks(document)}
    q, k, v, out = (torch.randn(rows * length, HEADS, PER_HEAD, requires_grad=True) for _ in range(4))
    found = {name: forward_backward(way, q, k, v, out.detach()) for name, way in ways.items()}
    for one, other in zip(found["masked"], found["blocks"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            forward_backward(way, q, k, v, out.detach())
            times[name].append(time.perf_counter() - begin)
    ratios = [one / other for one, other in zip(times["masked"], times["blocks"], strict=True)]
    cells = [f"{statistics.median(taken):.3g}" for taken in times.values()]
    return " | ".join([*cells, f"{statistics.median(ratios):.1f} x ({min(ratios):.1f}, {max(ratios):.1f})"])


def forward_backward(way: Way, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> list[Tensor]:
    found = way(q, k, v)
    return [found.detach(), *torch.autograd.grad(found, (q, k, v), gradient)]


def masked(length: int, rows: int) -> Way:
    place = torch.arange(length)
    mask = (place - place[:, None]).abs() <= REACH

    def way(*qkv: Tensor) -> Tensor:
        q, k, v = (x.unflatten(0, (rows, length)).transpose(1, 2) for x in qkv)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(0, 1)

    return way


def by_blocks(document: Tensor) -> Way:
    mask = band_mask(document, REACH)
    return lambda q, k, v: band_attention(q, k, v, mask, REACH, 0.0)


if __name__ == "__main__":
    main()
