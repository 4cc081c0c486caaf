"""A matrix product in Triton to compare with cuBLAS: as many programs as multiprocessors, each computes several tiles.

Tiles come through the tensor memory accelerator of Hopper, so that loads of the next tile overlap this one's products.
"""

from collections.abc import Callable

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

TILE = (128, 256, 64)  # rows, columns and inner elements
STAGES, WARPS = 3, 8


def prepared(a: Tensor, b: Tensor, out: Tensor, programs: int, tile: tuple[int, int, int] = TILE) -> Callable[[], None]:
    """A call that writes the product of a [M, K] and b [K, N] to `out` [M, N]; all row-major, of one dtype."""
    rows, columns, inner = tile
    tiles = triton.cdiv(a.shape[0], rows) * triton.cdiv(b.shape[1], columns)
    described = (
        TensorDescriptor.from_tensor(matrix, list(block))
        for matrix, block in ((a, (rows, inner)), (b, (inner, columns)), (out, (rows, columns)))
    )
    arguments = *described, *out.shape, a.shape[1], *tile
    return lambda: _product[(min(tiles, programs),)](*arguments, num_stages=STAGES, num_warps=WARPS)


@triton.jit
def _product(
    a,  # [m, k]
    b,  # [k, n]
    out,  # out: [m, n]
    m,
    n,
    k,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    across = tl.cdiv(n, COLUMNS)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, ROWS) * across, tl.num_programs(0)):
        row, column = tile // across * ROWS, tile % across * COLUMNS
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, k, INNER):
            total = tl.dot(a.load([row, first]), b.load([first, column]), total)
        out.store([row, column], total.to(out.dtype))
