"""The item `products` of benchmarks/gpu_table.py: matrix products of a step by cuBLAS, cuBLASLt and Triton."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch

from benchmarks.gpu_steps import Bench, Unit, Values
from benchmarks.product_rates import Sizes, product_rates, rates_with, seconds_of
from benchmarks.step_parts import products_of_step
from benchmarks.step_work import SEED
from data_prep.common.errors import UserError

CASES = ("modernbert-base-1024", "base-512", "large-512")
LIBRARIES = (None, "cublaslt")
# A library reads the size of its workspace once. torch's sizes on Hopper: 32 MiB for cuBLAS, 1 MiB for cuBLASLt.
LARGER = {"CUBLAS_WORKSPACE_CONFIG": ":65536:2", "CUBLASLT_WORKSPACE_SIZE": "131072"}
SLOWEST = ("attention out", "MLP out")  # of the first case, their gradients of inputs; a sum over 768 in both
WRONG = 0.01  # a difference, relative to the largest value, that rounding to bf16 does not explain


def products(bench: Bench) -> Iterator[Unit]:
    """TFLOP/s of the matrix products of a step, by the library that torch chooses and by cuBLASLt.

    Of the first case also with larger workspaces, and of its slowest products with a Triton kernel.
    """
    larger = cache(partial(with_larger_workspaces, bench))
    for name in CASES:
        units = {titled(name, library): partial(by_library, bench, name, library) for library in LIBRARIES}
        if name == CASES[0]:
            for library in LIBRARIES:
                units[f"{titled(name, library)}, larger workspace"] = partial(of_library, larger, library)
            units[f"{name}, Triton"] = partial(by_triton, bench)
        yield from units.items()


def sizes_of(bench: Bench, name: str) -> Sizes:
    """The products of a step of a case."""
    work = bench.work(name)
    slots = work.case.rows[bench.device] * work.case.seq_len
    return products_of_step(work, slots, round(work.case.rate * slots))


def titled(name: str, library: str | None) -> str:
    return f"{name}, {library}" if library else name


def by_library(bench: Bench, name: str, library: str | None) -> Values:
    """TFLOP/s of each product, forward and backward."""
    return dict(product_rates(sizes_of(bench, name), bench.device, bench.cuda, library))


def with_larger_workspaces(bench: Bench) -> dict[str | None, Values]:
    """The same of the first case in another process, by library."""
    sizes = sizes_of(bench, CASES[0])
    rates = rates_with(LARGER, [(sizes, bench.device, bench.cuda, library) for library in LIBRARIES])
    return dict(zip(LIBRARIES, rates, strict=True))


def of_library(larger: Callable[[], dict[str | None, Values]], library: str | None) -> Values:
    return larger()[library]


def by_triton(bench: Bench) -> Values:
    """TFLOP/s of the slowest products by the Triton kernel, after a comparison with torch; on a CPU torch stands in."""
    rates, sizes = {}, sizes_of(bench, CASES[0])
    for product in SLOWEST:
        rows, columns, inner = sizes[product]
        generator = torch.Generator(bench.device).manual_seed(SEED)
        shapes = (rows, inner), (inner, columns)
        a, b = (torch.randn(s, generator=generator, device=bench.device, dtype=bench.dtype) for s in shapes)
        expected = a @ b
        out = torch.empty_like(expected)
        call: Callable[[], object] = partial(torch.mm, a, b, out=out)
        if bench.cuda:
            from benchmarks.persistent_product import prepared  # Triton comes with torch for GPUs

            call = prepared(a, b, out, torch.cuda.get_device_properties(0).multi_processor_count)
        call()
        difference = float((out - expected).abs().max() / expected.abs().max())
        if not difference <= WRONG:
            raise UserError(f"the product differs from torch's by {difference:.2g} of the largest value")
        rates[f"{product}, of inputs"] = 2.0 * rows * inner * columns / seconds_of(call, bench.device) / 1e12
    return rates
