"""Time of the operations between the matrix products of a layer on a GPU: plain torch, torch.compile, our kernels.

    python -m benchmarks.kernels_gpu

Also the time of local attention, against attention to the whole row and against the least that memory allows. At the
sizes of BERT-base and ModernBERT-base, in bf16, forward and backward. Needs a GPU.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.harness import options, run, spread, table, warn_if_busy, write_page
from data_prep.common.errors import UserError
from pretrain.kernels import PLAIN, Operations, operations
from pretrain.kernels.plain import rotation
from pretrain.model.attention import DocumentBounds, attention

TOKENS, PREDICTIONS, HIDDEN, HEADS = 1 << 16, 1 << 13, 768, 12
ROW, REACH = 8192, 64  # slots of a row, and tokens on either side that local attention sees
WARM_UP, ROUNDS, CALLS = 10, 15, 200
CLOSE = 2e-2  # the largest difference from plain torch, relative to the largest value: both round to bf16
Call = Callable[[], list[Tensor]]  # results and gradients
Case = Callable[[Operations], Call]


def main() -> None:
    parser = options(__doc__, "kernels_gpu")
    args = parser.parse_args()
    require_gpu()
    page = f"""# Kernels on a GPU

Forward and backward over {TOKENS:,} tokens of hidden size {HIDDEN} in bf16, the loss over {PREDICTIONS:,} predictions;
microseconds per call, medians of {ROUNDS} rounds of {CALLS} calls between two CUDA events, with the fastest and the
slowest round. Results and gradients of each kernel were first compared with plain torch. The linear layer
before the GELU is part of its time in all three columns.

On one {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}.

{times()}

## Local attention

Flash attention of one layer over {TOKENS:,} tokens in documents of {ROW:,}, {HEADS} heads of {HIDDEN // HEADS}, forward
and backward. Any kernel must move the bytes of six copies: it reads query, key and value and writes the output, then
reads these and the output's gradient and writes three gradients.

{local_attention()}
"""
    write_page(args.out, page, ("torch", "triton"))


def require_gpu() -> None:
    if not torch.cuda.is_available():
        raise UserError("this benchmark needs a GPU, but torch finds none")
    warn_if_busy()


def times() -> str:
    """A table of all cases."""
    fused = operations(True)
    compiled = Operations(*(torch.compile(function, fullgraph=True, dynamic=False) for function in PLAIN))
    rows = []
    for operation, model, case in cases():
        check(f"{operation} of {model}", case(fused)(), case(PLAIN)())
        rows.append([operation, model, *(microseconds(case(using)) for using in (PLAIN, compiled, fused))])
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    return table(["operation", "model", "plain torch", "torch.compile", "kernel"], *rows, left=2)


def local_attention() -> str:
    """A table of flash attention with a window, without one, and of copies of the bytes that any kernel must move."""
    bounds = torch.arange(0, TOKENS + 1, ROW, device="cuda", dtype=torch.int32)
    documents = DocumentBounds.of(bounds, TOKENS, ROW, "varlen")
    leaves = [numbers(TOKENS, HEADS, HIDDEN // HEADS) for _ in range(3)]
    ways = {
        f"{2 * REACH + 1} tokens": both_ways(lambda: [attention(*leaves, documents, REACH)], leaves),
        "the whole document": both_ways(lambda: [attention(*leaves, documents)], leaves),
        "six copies": lambda: [leaf.detach().clone() for leaf in (*leaves, *leaves)],
    }
    return table(["attention to", "time"], *([name, microseconds(call)] for name, call in ways.items()))


def cases() -> list[tuple[str, str, Case]]:
    return [
        ("embeddings + norm", "BERT", lambda using: embedding(using, 30_522, table=True)),
        ("embeddings + norm", "ModernBERT", lambda using: embedding(using, 50_368, table=False)),
        ("residual + norm", "BERT", lambda using: norm(using, bias=True, residual=True, keeps_sum=False)),
        ("residual + norm, both kept", "ModernBERT", lambda using: norm(using, False, residual=True, keeps_sum=True)),
        ("norm", "ModernBERT", lambda using: norm(using, False, residual=False, keeps_sum=True)),
        ("linear + GELU", "BERT", lambda using: gelu(using, 3072)),
        ("GeGLU", "ModernBERT", lambda using: geglu(using, 1152)),
        ("rotary", "ModernBERT", rotary),
        ("loss", "BERT", lambda using: loss(using, 30_522)),
        ("loss", "ModernBERT", lambda using: loss(using, 50_368)),
    ]


def norm(using: Operations, bias: bool, residual: bool, keeps_sum: bool) -> Call:
    leaves = [numbers(TOKENS, HIDDEN), numbers(HIDDEN)]
    leaves += [numbers(TOKENS, HIDDEN)] if residual else []
    leaves += [numbers(HIDDEN)] if bias else []

    def forward() -> list[Tensor]:
        x, weight, *more = leaves
        normed, _, total = using.add_norm(x, more[0] if residual else None, weight, more[-1] if bias else None, 1e-5)
        return [normed, total] if keeps_sum else [normed]

    return both_ways(forward, leaves)


def embedding(using: Operations, n_ids: int, table: bool) -> Call:
    leaves = [numbers(n_ids, HIDDEN), numbers(HIDDEN)]
    leaves += [numbers(512, HIDDEN), numbers(1, HIDDEN), numbers(HIDDEN)] if table else []
    tokens, positions = (torch.arange(TOKENS, device="cuda") * 7919 % limit for limit in (n_ids, 512))

    def forward() -> list[Tensor]:
        words, weight, *more = leaves
        where, kind, bias = (more[0], more[1][0], more[2]) if table else (None, None, None)
        return [using.embed_norm(tokens, words, positions if table else None, where, kind, weight, bias, 1e-5)[0]]

    return both_ways(forward, leaves)


def gelu(using: Operations, width: int) -> Call:
    leaves = [numbers(TOKENS, HIDDEN), numbers(width, HIDDEN), numbers(width)]
    return both_ways(lambda: [using.linear_gelu(*leaves)], leaves)


def geglu(using: Operations, width: int) -> Call:
    """The kernel overwrites its input, so later rounds have other numbers. They take the same time."""
    leaves = [numbers(TOKENS, 2 * width)]
    return both_ways(lambda: [using.geglu(*leaves)], leaves)


def rotary(using: Operations) -> Call:
    """As for geglu."""
    leaves = [numbers(TOKENS, 3 * HIDDEN)]
    by = rotation(torch.arange(TOKENS, device="cuda") % 1024, HIDDEN // HEADS, 160_000.0, torch.bfloat16)
    return both_ways(lambda: list(using.rotate_qkv(*leaves, HEADS, HEADS, by)), leaves)


def loss(using: Operations, n_ids: int) -> Call:
    """As for geglu: the only pass replaces logits by their gradient."""
    logits = numbers(PREDICTIONS, -(-n_ids // 64) * 64).detach()
    labels = torch.arange(PREDICTIONS, device="cuda") % n_ids
    return lambda: [using.cross_entropy(logits, labels, n_ids, 0.0, 0.0, True), logits]


def both_ways(forward: Callable[[], list[Tensor]], leaves: list[Tensor]) -> Call:
    gradients: list[Tensor] = []  # of the results, made in the first call

    def call() -> list[Tensor]:
        results = forward()
        if not gradients:
            gradients.extend(numbers(*part.shape).detach() for part in results)
        return [*results, *torch.autograd.grad(results, leaves, gradients)]

    return call


def numbers(*shape: int) -> Tensor:
    """The same normal numbers each time."""
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16).requires_grad_()


def check(name: str, results: list[Tensor], expected: list[Tensor]) -> None:
    for result, plain in zip(results, expected, strict=True):
        difference = (result.float() - plain.float()).abs().max().item()
        if not difference <= CLOSE * plain.float().abs().max().item():
            raise UserError(f"the kernel for {name} differs from plain torch by {difference:g}")


def microseconds(call: Callable[[], object]) -> str:
    """Microseconds per call: median, fastest and slowest round."""
    times = []
    for number in range(WARM_UP + ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        if number >= WARM_UP:
            times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return spread(times, ".1f")


if __name__ == "__main__":
    run(main)
