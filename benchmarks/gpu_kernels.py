"""Parts of a step for benchmarks/gpu_table.py: the machine's rates, attention, and the other kernels."""

import contextlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.gpu_steps import Bench, Unit, Values, newer_flash
from benchmarks.product_rates import seconds_of
from benchmarks.step_sides import loaded
from benchmarks.step_work import SEED
from data_prep.common.errors import UserError
from data_prep.common.packages import installed_version
from pretrain.kernels import (
    PLAIN,
    Attention,
    FlashAttention,
    Operations,
    Rotation,
    Tiles,
    adamw,
    fastest_attention,
    rotation,
    use_version,
)
from pretrain.model import peak_tflops
from pretrain.model.attention import DocumentBounds, attention
from pretrain.model.model_costs import pairs_seen

PER_HEAD, THETA, REACH = 64, 160_000.0, 64
SHAPES = (  # case whose documents count, and how many tokens local attention sees on either side
    ("base-512", None),
    ("modernbert-base-1024", None),
    ("modernbert-base-1024", REACH),
    ("modernbert-base-8192", None),
    ("modernbert-base-8192", REACH),
)
MASKED, ROW_BOUND, OURS = "sdpa with a mask", "row length as bound", "Maskwright's kernel"
WRONG = 0.1  # a difference, relative to the largest value, that rounding to bf16 does not explain
RESULTS = ("output", "dQ", "dK", "dV")
Call = Callable[[], list[Tensor]]  # results and gradients


def machine(bench: Bench) -> Iterator[Unit]:
    """Versions, and the rates of a copy and of a large product."""
    yield "versions", lambda: versions(bench)
    yield "rates", lambda: rates(bench)


def versions(bench: Bench) -> Values:
    names = ("torch", "triton", "transformers", "deepspeed", "flash_attn_3", "flash-attn-4", "packed-encoders")
    found: Values = {"python": platform.python_version()}
    found |= {name: installed_version(name) or "not installed" for name in names}
    if bench.cuda:
        name = torch.cuda.get_device_name()
        found |= {"newer FlashAttention": newer_flash(bench.cuda)}
        found |= {"device": name, "CUDA": torch.version.cuda, "peak TFLOP/s": peak_tflops(name)}
    return found


def rates(bench: Bench) -> Values:
    """Bytes that a copy reads and writes, and operations of a product of square matrices, per second."""
    width = 8192 if bench.cuda else 256
    one, other = (torch.randn(width, width, device=bench.device, dtype=bench.dtype) for _ in range(2))
    large = torch.empty(1 << (30 if bench.cuda else 20), device=bench.device, dtype=torch.uint8)
    target = torch.empty_like(large)
    return {
        "copy, GB/s": 2 * len(large) / seconds_of(lambda: target.copy_(large), bench.device) / 1e9,
        f"product of {width:,} cubed, TFLOP/s": 2 * width**3 / seconds_of(lambda: one @ other, bench.device) / 1e12,
    }


@dataclass(frozen=True)
class Layer:
    """A layer's attention: merged query, key and value [N, 3 * H * E], rotation, documents, a gradient [N, H, E]."""

    qkv: Tensor
    by: Rotation
    bounds: Tensor
    row: int
    longest: int
    heads: int
    gradient: Tensor

    @classmethod
    def of(cls, bench: Bench, bounds: Tensor, row: int, longest: int, heads: int) -> "Layer":
        """A layer of random numbers; the same each time."""
        n, begins = int(bounds[-1]), bounds[:-1].long()
        generator = torch.Generator(bench.device).manual_seed(SEED)
        numbers = torch.randn(n, 4 * heads * PER_HEAD, generator=generator, device=bench.device, dtype=bench.dtype)
        slots = torch.arange(n, device=bench.device, dtype=bounds.dtype)
        positions = slots - begins[torch.bucketize(slots, bounds, right=True) - 1]
        qkv, gradient = numbers.split([3 * heads * PER_HEAD, heads * PER_HEAD], dim=1)
        by = rotation(positions, PER_HEAD, THETA, bench.dtype)
        return cls(qkv.contiguous(), by, bounds, row, longest, heads, gradient.unflatten(1, (heads, -1)).contiguous())

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Of the documents."""
        return self.bounds.diff().long().cpu().numpy()


Attend = Callable[[Tensor], Tensor]  # of qkv; the kernel of the rotation may overwrite it


def attends(bench: Bench, layer: Layer, reach: int | None) -> dict[str, tuple[Attend, int]]:
    """Ways to compute a layer's attention with the version of flash attention, rotation and merged gradient included.

    Global layers take Maskwright's kernel with the row's length as window.
    """
    fused, n = bench.operations, len(layer.qkv)

    def separate(backend: Attention, longest: int, qkv: Tensor) -> Tensor:
        documents = DocumentBounds.of(layer.bounds, n, layer.row, backend, reaches=(reach,), longest=longest)
        return attention(*fused.rotate_heads(qkv, (layer.heads,) * 3, 2, layer.by), documents, reach)

    def kernel(qkv: Tensor) -> Tensor:
        assert fused.window_attention
        return fused.window_attention(qkv, layer.heads, layer.by, tiles, layer.row if reach is None else reach)

    tiles, usual = Tiles.of(layer.bounds, n), fastest_attention(bench.device, str(bench.dtype), PER_HEAD, 0.0)
    ways: dict[str, tuple[Attend, int]] = {MASKED: (partial(separate, "sdpa", layer.row), 2)}
    for words, (_, flash) in bench.ways(local=False).items():
        if flash == 2:
            ways[f"{words}, {ROW_BOUND}"] = partial(separate, usual, layer.row), flash
        ways[f"{words}, longest document as bound"] = partial(separate, usual, layer.longest), flash
    return ways | {OURS: (kernel, 2)}


@contextlib.contextmanager
def flash(version_number: int) -> Iterator[None]:
    """Inside, torch uses this version of flash attention."""
    try:
        use_version(version_number)
        yield
    finally:
        use_version(FlashAttention().version)


def agreement(bench: Bench) -> Iterator[Unit]:
    """Output and gradients of each way to compute attention against fp64, with documents around the sizes of tiles."""
    lengths = [1, 63, 64, 65, 60] if bench.quick else [1, 2, 63, 64, 65, 127, 128, 129, 200, 511, 513, 1000, 1024, 269]
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=bench.device)
    n, heads = sum(lengths), 2 if bench.quick else 12
    for reach in (None, REACH):
        layer = Layer.of(bench, bounds, n, n, heads)
        expected = cache(partial(in_fp64, layer, reach))
        for words, way in attends(bench, layer, reach).items():
            if ROW_BOUND not in words:
                yield f"{seen(reach)}: {words}", partial(difference, layer, *way, expected)


def seen(reach: int | None) -> str:
    return "all tokens" if reach is None else f"{reach} tokens on either side"


def in_fp64(layer: Layer, reach: int | None) -> list[Tensor]:
    """Output, and gradients of query, key and value."""
    by = (layer.by[0].double(), layer.by[1].double())
    leaf = layer.qkv.double().requires_grad_()
    documents = DocumentBounds.of(layer.bounds, len(leaf), layer.row, "sdpa", reaches=(reach,))
    out = attention(*PLAIN.rotate_heads(leaf, (layer.heads,) * 3, 2, by), documents, reach)
    return [out.detach(), *torch.autograd.grad(out, leaf, layer.gradient.double())[0].chunk(3, dim=1)]


def difference(layer: Layer, attend: Attend, number: int, expected: Callable[[], list[Tensor]]) -> Values:
    """The largest difference of each result, relative to the largest value."""
    with flash(number):
        leaf = layer.qkv.clone().requires_grad_()
        out = attend(leaf)
        results = [out.detach(), *torch.autograd.grad(out, leaf, layer.gradient)[0].chunk(3, dim=1)]
    pairs = zip(RESULTS, results, expected(), strict=True)
    found = {name: float((one - other).abs().max() / other.abs().max()) for name, one, other in pairs}
    if not max(found.values()) <= WRONG:
        raise UserError(f"the results differ from fp64: {found}")
    return found


def side_by_side(bench: Bench) -> Iterator[Unit]:
    """Attention of a layer with the documents of a step, forward and backward apart."""
    layers: dict[str, Layer] = {}
    for name, reach in SHAPES[1:3] if bench.quick else SHAPES:
        if name not in layers:
            layers = {name: layer_of_step(bench, name)}
        layer = layers[name]
        for words, way in attends(bench, layer, reach).items():
            if words == MASKED:
                continue
            shape = f"rows of {bench.case(name).seq_len:,}, {seen(reach)}"
            yield f"{shape}: {words}", partial(timed_attention, bench, layer, *way, reach)


def layer_of_step(bench: Bench, name: str) -> Layer:
    """A layer with the documents of the first step of a case."""
    work = bench.work(name)
    with contextlib.closing(loaded(work)) as batches:  # type: ignore[type-var]
        part = next(batches).inputs[0].wait()
    return Layer.of(bench, part.cu_seqlens, work.case.seq_len, part.longest, 2 if bench.quick else 12)


def timed_attention(bench: Bench, layer: Layer, attend: Attend, number: int, reach: int | None) -> Values:
    """Milliseconds, and TFLOP/s of the pairs of tokens that attend to each other: 4 operations forward, 8 backward."""
    with flash(number):
        leaf = layer.qkv.clone().requires_grad_()
        out = attend(leaf)
        forward = bench.seconds(lambda: attend(leaf))
        backward = bench.seconds(lambda: torch.autograd.grad(out, leaf, layer.gradient, retain_graph=True))
    flops = 4 * layer.heads * PER_HEAD * pairs_seen(layer.lengths, reach, causal=False)
    return {
        "forward ms": forward * 1e3,
        "backward ms": backward * 1e3,
        "TFLOP/s": 3 * flops / (forward + backward) / 1e12,
    }


def kernels(bench: Bench) -> Iterator[Unit]:
    """The operations between matrix products, forward and backward: plain torch against the kernel."""
    for name, (case, moved) in operation_cases(bench).items():
        yield name, partial(timed_kernel, bench, case, moved)


def timed_kernel(bench: Bench, case: Callable[[Operations], Call], moved: int | None) -> Values:
    """Milliseconds of both, after a comparison of their results; GB/s of the `moved` bytes of the kernel."""
    ours, plain = case(bench.operations), case(PLAIN)
    differences = [
        float((result - expected).detach().abs().max() / expected.detach().abs().max())
        for result, expected in zip(ours(), plain(), strict=True)
    ]
    if not max(differences) <= WRONG:
        raise UserError(f"the kernel differs from plain torch by {max(differences):.2g} of the largest value")
    seconds = bench.seconds(ours)
    found = {"plain ms": bench.seconds(plain) * 1e3, "kernel ms": seconds * 1e3, "difference": max(differences)}
    return found | ({"kernel, GB/s": moved / seconds / 1e9} if moved else {})


def operation_cases(bench: Bench) -> dict[str, tuple[Callable[[Operations], Call], int | None]]:
    """By name: the call of an operation, and the bytes that it must at least read and write.

    Forward and backward pass, in matrices [N, D] or [N, I]: a norm of one matrix reads it, writes its result, reads
    both again with a gradient, and writes a gradient.
    """
    n, d, wide, gated = (64, 64, 128, 64) if bench.quick else (1 << 16, 768, 3072, 1152)
    bert, modern, large, predictions = (64, 64, 64, 16) if bench.quick else (30_528, 50_368, 256_000, 1 << 13)
    matrix = n * d * bench.dtype.itemsize

    def numbers(*shape: int) -> Tensor:
        generator = torch.Generator(bench.device).manual_seed(sum(shape))
        return torch.randn(shape, generator=generator, device=bench.device, dtype=bench.dtype).requires_grad_()

    def both_ways(forward: Call, leaves: list[Tensor]) -> Call:
        gradients: list[Tensor] = []  # of the results, made in the first call

        def call() -> list[Tensor]:
            results = forward()
            if not gradients:
                gradients.extend(numbers(*part.shape).detach() for part in results)
            return [*results, *torch.autograd.grad(results, leaves, gradients)]

        return call

    def norm(bias: bool, residual: bool, using: Operations) -> Call:
        leaves = [numbers(n, d), numbers(d)]
        leaves += [numbers(n, d)] * residual + [numbers(d), numbers(d)] * bias

        def forward() -> list[Tensor]:
            x, weight, *more = leaves
            of = more[0] if residual else None, weight, more[-2] if bias else None
            normed, _, total = using.add_norm(x, *of, 1e-5, more[-1] if bias else None)
            return [normed] if bias else [normed, total]

        return both_ways(forward, leaves)

    def embedding(n_ids: int, table: bool, using: Operations) -> Call:
        leaves = [numbers(n_ids, d), numbers(d)]
        leaves += [numbers(512, d), numbers(1, d), numbers(d)] if table else []
        tokens, positions = (torch.arange(n, device=bench.device) * 7919 % limit for limit in (n_ids, 512))

        def forward() -> list[Tensor]:
            words, weight, *more = leaves
            where, kind, bias = (more[0], more[1][0], more[2]) if table else (None, None, None)
            return [using.embed_norm(tokens, words, positions if table else None, where, kind, weight, bias, 1e-5)[0]]

        return both_ways(forward, leaves)

    def gelu(using: Operations) -> Call:
        leaves = [numbers(n, d), numbers(wide, d), numbers(wide)]
        return both_ways(lambda: [using.linear_gelu(*leaves)], leaves)

    def geglu(using: Operations) -> Call:  # this kernel and the next two overwrite their input: equally fast later
        leaves = [numbers(n, 2 * gated)]
        return both_ways(lambda: [using.geglu(*leaves)], leaves)

    def rotary(using: Operations) -> Call:
        leaves, heads = [numbers(n, 3 * d)], d // PER_HEAD
        by = rotation(torch.arange(n, device=bench.device) % 1024, PER_HEAD, THETA, bench.dtype)
        return both_ways(lambda: list(using.rotate_heads(*leaves, (heads,) * 3, 2, by)), leaves)

    def loss(n_ids: int, using: Operations) -> Call:
        logits = numbers(predictions, n_ids).detach()
        labels = torch.arange(predictions, device=bench.device) % n_ids
        return lambda: [*using.cross_entropy(logits, labels, None, 0.0, True), logits]

    def optimizer(using: Operations) -> Call:
        weights, *moments = torch.full((3, n * d // 2), 0.01, device=bench.device)
        gradient, copy = numbers(n * d // 2).detach(), weights.to(bench.dtype, copy=True)
        state = {"exp_avg": moments[0], "exp_avg_sq": moments[1], "step": torch.zeros((), device=bench.device)}
        settings = {"lr": 1e-4, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01}
        divisor = torch.ones((), device=bench.device)

        def call() -> list[Tensor]:
            (using.adamw or adamw)([weights], [gradient], [state], [copy], settings, divisor, None)
            return [weights, copy]

        return call

    logit = predictions * bench.dtype.itemsize
    return {
        "embeddings and norm, BERT": (partial(embedding, bert, True), 6 * matrix),
        "embeddings and norm, ModernBERT": (partial(embedding, modern, False), 5 * matrix),
        "bias, residual and norm, BERT": (partial(norm, True, True), 7 * matrix),
        "residual and norm, both kept, ModernBERT": (partial(norm, False, True), 8 * matrix),
        "norm, ModernBERT": (partial(norm, False, False), 6 * matrix),
        "linear and GELU, BERT": (gelu, None),
        "GeGLU, ModernBERT": (geglu, 9 * n * gated * bench.dtype.itemsize),
        "rotary, ModernBERT": (rotary, 10 * matrix),
        "loss, BERT": (partial(loss, bert), 3 * bert * logit),
        "loss, ModernBERT": (partial(loss, modern), 3 * modern * logit),
        "loss, vocabulary of 256k": (partial(loss, large), 3 * large * logit),
        "AdamW": (optimizer, (6 * 4 + 2 * bench.dtype.itemsize) * (n * d // 2)),
    }
