"""Small Triton kernels of the tests. Only this module of the tests imports Triton."""

import torch
import triton
import triton.language as tl

from pretrain.masking.gpu_masking import counter_words


@triton.jit(do_not_specialize=["key"])
def _store_words(counters, out, key: tl.uint64, COUNTERS: tl.constexpr):
    c1 = tl.load(counters + COUNTERS).to(tl.uint32)
    c2 = tl.load(counters + COUNTERS + 1).to(tl.uint32)
    c3 = tl.load(counters + COUNTERS + 2).to(tl.uint32)
    c0 = tl.load(counters + tl.arange(0, COUNTERS)).to(tl.uint32)
    tl.store(out + tl.arange(0, 4 * COUNTERS), counter_words(key, c0, c1, c2, c3).to(tl.int64))


def philox_words(
    key: tuple[int, int], c0: list[int], c1: int, c2: int, c3: int, device: str = "cpu"
) -> list[list[int]]:
    """The four words of each counter (c0[i], c1, c2, c3), as the masking kernel computes them; c0: a power of two."""
    counters = torch.tensor([*c0, c1, c2, c3], dtype=torch.int64, device=device)
    out = torch.empty(4 * len(c0), dtype=torch.int64, device=device)
    _store_words[(1,)](counters, out, key[0] | key[1] << 32, COUNTERS=len(c0))
    return out.reshape(-1, 4).tolist()
