"""Local attention: by blocks (pretrain/model/attention.py), against one mask for the whole row.

    python -m benchmarks.local_attention

One layer with 12 heads of 64 dimensions that attends to 128 tokens, forward and backward, fp32, one document per row.
The two ways take turns. Their results are compared first.
"""

import statistics
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import options, ratios, seconds_in_turns, spread, table, warn_if_busy, write_page
from pretrain.model.attention import band_attention, band_mask

HEADS, PER_HEAD, REACH = 12, 64, 64
ROWS = {512: 4, 1024: 2, 2048: 1, 4096: 1, 8192: 1}  # by length
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def main() -> None:
    parser = options(__doc__, "local_attention")
    parser.add_argument("--rounds", type=int, default=3, help="each measures both ways once")
    args = parser.parse_args()
    warn_if_busy()
    torch.set_num_threads(1)
    lines = [[f"{rows} of {length:,}", *measure(length, rows, args.rounds)] for length, rows in ROWS.items()]
    page = f"""# Local attention

Seconds of a layer's attention, forward and backward: {HEADS} heads of {PER_HEAD}, {REACH} tokens on either side,
 fp32, one CPU thread, one document per row; medians of {args.rounds} rounds in turns.

{table(["rows", "masked row, s", "by blocks, s", "times as fast (least to most)"], *lines)}
"""
    write_page(args.out, page, ("torch",))


def measure(length: int, rows: int, rounds: int) -> list[str]:
    """Cells of the table."""
    document = torch.arange(rows).repeat_interleave(length)
    ways = {"masked": masked(length, rows), "blocks": by_blocks(document)}
    q, k, v, out = (torch.randn(rows * length, HEADS, PER_HEAD, requires_grad=True) for _ in range(4))
    sides = {name: partial(forward_backward, way, q, k, v, out.detach()) for name, way in ways.items()}
    for one, other in zip(sides["masked"](), sides["blocks"](), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    times = seconds_in_turns(sides, rounds)
    medians = [f"{statistics.median(seconds):.3g}" for seconds in times.values()]
    return [*medians, spread(ratios(times["masked"], times["blocks"]), ".1f")]


def forward_backward(way: Way, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> list[Tensor]:
    result = way(q, k, v)
    return [result.detach(), *torch.autograd.grad(result, (q, k, v), gradient)]


def masked(length: int, rows: int) -> Way:
    position = torch.arange(length)
    mask = (position - position[:, None]).abs() <= REACH

    def way(*qkv: Tensor) -> Tensor:
        q, k, v = (x.unflatten(0, (rows, length)).transpose(1, 2) for x in qkv)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(0, 1)

    return way


def by_blocks(document: Tensor) -> Way:
    mask = band_mask(document, REACH)
    return lambda q, k, v: band_attention(q, k, v, mask, REACH, 0.0)


if __name__ == "__main__":
    main()
