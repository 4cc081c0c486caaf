"""Tile sizes of kernels: rows and columns that a program holds at a time."""

import triton

_ELEMENTS = 2048  # elements of a tile, unless one row has more
_OF_A_WARP = 512
_MOST_WARPS = 16


def whole_rows(columns: int) -> dict[str, int]:
    """Constants of a kernel whose programs hold whole rows."""
    return _tile(triton.next_power_of_2(columns))


def parts_of_rows(columns: int) -> dict[str, int]:
    """Constants of a kernel whose programs hold a part of the columns; the parts are a second grid axis."""
    return _tile(min(triton.next_power_of_2(columns), 512))


def _tile(block: int) -> dict[str, int]:
    rows = max(_ELEMENTS // block, 1)
    return {"BLOCK": block, "ROWS": rows, "num_warps": min(max(rows * block // _OF_A_WARP, 1), _MOST_WARPS)}
