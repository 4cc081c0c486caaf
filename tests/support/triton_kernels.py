"""Small Triton kernels of the tests. Only this module of the tests imports Triton."""

from unittest.mock import patch

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from pretrain.kernels.fused import FUSED
from pretrain.masking.gpu_masking import counter_words, launch_sizes, mask_row


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


def compile_mask_row(architecture: int, seq_len: int, slots: int, with_units: bool) -> dict[str, int]:
    """Compile the masking kernel for an NVIDIA GPU, which need not be there: bytes of code and of shared memory."""
    pointers = {"row_ids": "*i64", "rate": "*i64", "ranks": "*i32", "ordinary_ids": "*i32"}
    outputs = dict.fromkeys(("seen", "positions", "labels"), "*i64")
    numbers = {"key": "u64", **dict.fromkeys(("to_mask", "to_random", "mask_id", "n_others"), "i32")}
    constants = launch_sizes(seq_len, slots)
    options = {"num_warps": constants.pop("num_warps")}
    values = {**constants, **({} if with_units else {"units": None})}
    types = {"tokens": "*i64", "units": "*u8", **pointers, **outputs, **numbers, **dict.fromkeys(constants, "")}
    types |= dict.fromkeys(values, "constexpr")
    made = triton.compile(ASTSource(mask_row, types, values), GPUTarget("cuda", architecture, 32), options)
    return {"code": len(made.asm["cubin"]), "shared": made.metadata.shared}


def compile_operations(architecture: int) -> list[tuple[str, int, int]]:
    """Compile each kernel that the operations of a base model launch, for an NVIDIA GPU, which need not be there.

    They run with launches that only compile. For each: module and name, bytes of code and of shared memory.
    """
    made = []

    def compile_only(kernel: JITFunction, *arguments, grid, warmup, num_warps, **constants) -> None:
        given = dict(zip(kernel.arg_names, arguments, strict=False)) | constants
        fixed = {name: value for name, value in given.items() if name in constants or value is None}
        types = {name: "constexpr" if name in fixed else mangle_type(value) for name, value in given.items()}
        options = {"num_warps": num_warps}
        result = triton.compile(ASTSource(kernel, types, fixed), GPUTarget("cuda", architecture, 32), options)
        name = f"{kernel.fn.__module__.split('.')[-1]}.{kernel.fn.__name__}"
        made.append((name, len(result.asm["cubin"]), result.metadata.shared))

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.bfloat16).requires_grad_()

    x, weight, bias = numbers(8, 768), numbers(768), numbers(768)
    by = (numbers(8, 1, 32), numbers(8, 1, 32))
    labels = torch.zeros(8, dtype=torch.int64)
    with patch.object(JITFunction, "run", compile_only):
        results = [
            *FUSED.embed_norm(labels, numbers(64, 768), labels, numbers(64, 768), weight, weight, bias, 1e-12),
            *FUSED.embed_norm(labels, numbers(64, 768), None, None, None, weight, None, 1e-5),
            *FUSED.add_norm(x, x * 1, weight, bias, 1e-12),
            FUSED.add_norm(x, None, weight, None, 1e-5)[0],
            FUSED.linear_gelu(x, numbers(3072, 768), numbers(3072)),
            FUSED.linear_gelu(x, numbers(768, 768), None),
            FUSED.geglu(numbers(8, 2304) * 1),
            *FUSED.rotate_qkv(numbers(8, 2304) * 1, 12, by),
        ]
        torch.autograd.backward(results, [torch.ones_like(part) for part in results])
        for smoothing, learns in ((0.0, True), (0.1, True), (0.0, False)):
            FUSED.cross_entropy(numbers(8, 50_368).detach(), labels, 50_280, smoothing, 1e-4, learns)
    return made
