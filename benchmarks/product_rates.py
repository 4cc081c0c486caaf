"""The speed of matrix products on a device, in this process or in one that starts with other settings of libraries.

The process that this module runs in imports torch alone, so that it starts in seconds.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.harness import ROOT
from data_prep.common.errors import UserError

Sizes = dict[str, tuple[int, int, int]]  # of x [rows, inside] and weight [outside, inside]: rows, inside, outside


def product_rates(products: Sizes, device: str, half: bool, library: str | None = None) -> dict[str, float]:
    """The best TFLOP/s of each product of x and weight, forward and backward.

    Args:
        half: in bf16, otherwise in fp32.
        library: what multiplies on a GPU, as in torch.backends.cuda.preferred_blas_library; None for torch's choice.
    """
    dtype = torch.bfloat16 if half else torch.float32
    rates = {}
    with preferred(library if device == "cuda" else None):
        for name, (rows, inside, outside) in products.items():
            x = torch.randn(rows, inside, device=device, dtype=dtype)
            weight = torch.randn(outside, inside, device=device, dtype=dtype)
            y, flops = x @ weight.t(), 2.0 * rows * inside * outside
            ways = {
                "forward": lambda: torch.mm(x, weight.t(), out=y),  # noqa: B023
                "of inputs": lambda: y @ weight,  # noqa: B023
                "of weights": lambda: y.t() @ x,  # noqa: B023
            }
            for way, call in ways.items():
                rates[f"{name}, {way}"] = flops / seconds_of(call, device) / 1e12
    return rates


@contextlib.contextmanager
def preferred(library: str | None) -> Iterator[None]:
    """Inside, torch multiplies with this library."""
    usual = torch.backends.cuda.preferred_blas_library()
    try:
        if library:
            torch.backends.cuda.preferred_blas_library(library)  # type: ignore[arg-type]
        yield
    finally:
        if library:
            torch.backends.cuda.preferred_blas_library(usual)


def rates_with(variables: dict[str, str], calls: list[tuple[Any, ...]]) -> list[dict[str, float]]:
    """The results of calls of `product_rates` in a process with further variables of the environment."""
    command = [sys.executable, "-m", "benchmarks.product_rates", json.dumps(calls)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the process of the products ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    rates: list[dict[str, float]] = json.loads(done.stdout)
    return rates


def seconds_of(call: Callable[[], Any], device: str) -> float:
    """The shortest of several times of a call."""
    calls = 20 if device == "cuda" else 1
    times = []
    for _ in range(8):
        torch.cuda.synchronize() if device == "cuda" else None
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize() if device == "cuda" else None
        times.append((time.perf_counter() - begin) / calls)
    return min(times[1:]) if device == "cpu" else statistics.median(times[2:])


if __name__ == "__main__":
    print(json.dumps([product_rates(*arguments) for arguments in json.loads(sys.argv[1])]))
