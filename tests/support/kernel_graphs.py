"""Encoders compiled with their Triton kernels, on a CPU.

torch.compile does not capture kernels of Triton's interpreter. Here it captures real kernels, and their launches are
interpreted. torch's own operations run without generated code. Use a process of its own that does not interpret
Triton, see tests.support.triton_process.
"""

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch._dynamo.utils import counters
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.interpreter import InterpretedFunction, _patch_lang
from triton.runtime.jit import JITFunction

from pretrain.kernels.fused import FUSED
from pretrain.trial.path_comparison import run_pass, tolerance
from tests.support.compiled_kernels import no_device
from tests.support.path_cases import encoder, inputs
from tests.support.streams import stream

_interpreted = functools.cache(lambda function: InterpretedFunction(function))


class Compared(NamedTuple):
    """A compiled encoder with kernels beside one with kernels only, and beside plain torch.

    launches: of each kernel in a pass without and with a graph. graphs: of torch.compile. problems: what differs from
    plain torch, for a first batch and for one with another number of documents.
    """

    launches: tuple[Counter[str], Counter[str]]
    graphs: int
    problems: list[str | None]


def compare(arch: str, checkpointing: bool) -> Compared:
    """Forward and backward passes of an encoder; a graph break or a second graph is an error."""
    driver.set_active(no_device(GPUTarget("cuda", 90, 32)))  # for the rest of this process
    few = stream([16] * 4) | {name: inputs()[name] for name in ("masked_positions", "labels", "seq_len")}
    plain, kernels, compiled = (encoder(arch, "fp32") for _ in range(3))
    if checkpointing:
        compiled.checkpoint_layers()
    torch._dynamo.reset()
    counters.clear()
    without_generated_code = functools.partial(torch.compile, backend="aot_eager")
    with _interpreted_launches() as launched, patch("torch.compile", without_generated_code):
        kernels.use(FUSED)
        run_pass(kernels, inputs(), 4)
        alone = Counter(launched)
        launched.clear()
        compiled.use(FUSED, graph_shapes=1)
        first = run_pass(compiled, inputs(), 4)
        within = Counter(launched)
        with torch.compiler.set_stance("fail_on_recompile"):
            second = run_pass(compiled, few, 4)
    limit = tolerance("fp32", plain.shape.layers)
    problems = [
        found.difference_from(run_pass(plain, batch, 4), limit) for found, batch in ((first, inputs()), (second, few))
    ]
    return Compared((alone, within), counters["stats"]["unique_graphs"], problems)


@contextmanager
def _interpreted_launches() -> Iterator[list[str]]:
    """Interpret each launch of a kernel. Gives the names of launched kernels."""
    launched: list[str] = []

    def run(kernel: JITFunction, *arguments: Any, **options: Any) -> None:
        launched.append(kernel.fn.__name__)
        _interpreted(kernel.fn).run(*arguments, **options)

    def call(function: JITFunction, *arguments: Any, **options: Any) -> Any:
        """A call within a kernel. Unlike InterpretedFunction, it leaves Triton as it was, so that it can compile."""
        scope = _patch_lang(function.fn)
        try:
            return _interpreted(function.fn).rewrite()(*arguments, **options)
        finally:
            scope.restore()

    with (
        patch.object(JITFunction, "run", run),
        patch.object(JITFunction, "__call__", call),
        patch("torch.utils._triton.has_triton", lambda: True),  # torch looks for a GPU
    ):
        yield launched
