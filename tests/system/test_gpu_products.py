"""The item `products` of the GPU table: its Triton kernel, and what it measures in another process."""

import pytest

from benchmarks import product_rates
from benchmarks.gpu_products import LARGER, products
from benchmarks.gpu_steps import Bench, synthetic
from data_prep.common.errors import UserError
from tests.support.triton_process import needs_triton, triton_process

HALF = 5e-4  # rounding of a result to fp16, relative


def product_error(rows: int, inner: int, columns: int, half: bool) -> float:
    """The largest difference from float64, relative to the largest value."""
    import torch

    from benchmarks.persistent_product import prepared

    torch.manual_seed(0)
    dtype = torch.float16 if half else torch.float32
    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    out, exact = torch.empty(rows, columns, dtype=dtype), a.double() @ b.double()
    prepared(a, b, out, programs=3, tile=(64, 64, 32))()
    return float((out - exact).abs().max() / exact.abs().max())


def compiled_product() -> tuple[str, int]:
    """PTX for Hopper, and the bytes of shared memory, of the product that the item measures."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from benchmarks.persistent_product import _product, prepared
    from tests.support.compiled_kernels import no_device

    driver.set_active(no_device(GPUTarget("cuda", 90, 32)))  # for the rest of this process
    launch, results = _product.run, []
    _product.run = lambda *arguments, **options: results.append(launch(*arguments, **options | {"warmup": True}))
    shapes = (65_536, 768), (768, 1152), (65_536, 1152)
    prepared(*(torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes), programs=132)()
    return results[0].asm["ptx"], results[0].metadata.shared


@pytest.mark.slow
@needs_triton
def test_the_kernel_multiplies_and_compiles_for_hopper(tmp_path, monkeypatch):
    with triton_process(interpret=True) as process:
        for shape in ((300, 200, 264), (64, 64, 64), (129, 72, 40)):
            for half, bound in ((True, HALF), (False, 1e-6)):
                assert process.submit(product_error, *shape, half).result() <= bound, shape
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with triton_process(interpret=False) as process:
        code, shared = process.submit(compiled_product).result()
    assert "wgmma.mma_async" in code
    assert "cp.async.bulk.tensor" in code
    assert shared <= 227 << 10


def test_workspaces_are_those_of_the_process_that_measures(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "benchmarks.gpu_products.rates_with", lambda variables, of: calls.append(variables) or [{"a": 1.0}, {"a": 2.0}]
    )
    bench = Bench("cpu", True, synthetic(tmp_path / "data", 4096, 120))
    units = {name: measure for name, measure in products(bench) if name.startswith("modernbert")}
    figures = {name: measure() for name, measure in units.items()}
    larger = [figures[name] for name in figures if name.endswith("larger workspace")]
    assert (larger, calls) == ([{"a": 1.0}, {"a": 2.0}], [LARGER])  # one process for both
    assert figures["modernbert-base-1024, Triton"].keys() < figures["modernbert-base-1024"].keys()
    sizes = {"small": (8, 4, 2)}
    (rates,) = product_rates.rates_with(LARGER, [(sizes, "cpu", False, "cublaslt")])
    assert rates.keys() == product_rates.product_rates(sizes, "cpu", False).keys()
    with pytest.raises(UserError, match="ended with 1"):
        product_rates.rates_with({"PYTHONHOME": str(tmp_path)}, [(sizes, "cpu", False)])
